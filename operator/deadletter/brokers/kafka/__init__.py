"""The broker contract on Kafka: boxes are topics, a move is one transaction, the ledger is a compacted topic.

broker                 the contract; each method delegates to a module below
client                 connections to one cluster, and factories of producers and consumers
topics, ledger_topic   describe, create, configure and delete topics
offsets                start, end and last stable offsets of partitions
reads, fetch           read committed messages between two offsets
send_batches           pack messages into batches that a topic accepts, and send them
transactions           begin, commit and abort transactions
hanging_transactions   complete transactions whose markers were never written
ledger                 read and write the ledger topic
partition_writer       the only writer of a partition of a dead topic
monitor                depth, oldest letter and failure groups of many queues
subscription/          the claims and settlements of a courier
"""
