"""The replayer sends selected letters of one dead box back, each once, and counts exactly what it did.

main          entry point: reads the assignment, opens the broker and the sink, starts the run
run           freezes all windows, sends canaries, replays the partitions, verifies, finishes
partition     replays one partition: read, select, build, commit
session       access to one partition: its writer and its progress
context       what all partitions share, and what a batch commits
batch_results results of letters, gathered between two commits
publication   turns a letter into a publication for the target
sinks         targets that the writer cannot reach: another broker, a service
explicit_ids  replays of explicit letters
failed_again  counts letters that failed again
"""
