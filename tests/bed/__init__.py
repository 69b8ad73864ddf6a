"""The test bed: real Kubernetes, Kafka and Redis, started as plain processes.

A bed is a directory below the state directory. Its parts (redis, kafka, control, node, and the replicated
kafka-cluster and redis-sentinel) run as processes that have the name of the bed in their environment. Programs are
built or downloaded once into the cache directory.
"""
