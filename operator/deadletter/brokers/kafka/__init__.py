"""Kafka: boxes are topics, a move is one transaction, the ledger is a compacted topic.

broker        the contract, each method one call of a room below
line          connections: who dials, with which credentials
boxes         topics: describe, ensure, drop
reading       bounded reads of what is committed
parcels       messages packed into batches that a topic takes
transaction   the only place that begins, commits or aborts
ledgers       the ledger as it is up to its high watermark
mover         the one settler of a box partition
registers     depth, oldest and groups of many boxes
desk          claims and settlements of a courier
"""
