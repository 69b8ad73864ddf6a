"""One broker contract with three implementations: Kafka, Redis and a broker in memory."""
