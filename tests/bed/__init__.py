"""The test bed: real Kubernetes, Kafka and Redis, started as plain processes of our own.

A bed is a directory below the state directory; its parts (redis, kafka, control, node, and the replicated
kafka-cluster and redis-sentinel) run as processes that carry the bed's name in their environment. Programs are built or
fetched once into the cache directory.
"""
