"""The replayer: brings letters of one dead box back, once, and says exactly what it did.

main     reads the assignment, runs the course, leaves the last word
course   freeze all windows -> canary steps -> walk every partition -> verify -> finish
walk     one partition: read, choose, draft, commit
drafts   a letter becomes a publication (targets) or a reason why not
returns  which letters failed again
"""
