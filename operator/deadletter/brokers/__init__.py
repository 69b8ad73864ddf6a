"""The only door to Kafka and Redis: one contract, three brokers."""
