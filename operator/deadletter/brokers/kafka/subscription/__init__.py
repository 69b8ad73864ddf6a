"""A consumer-group subscription: source and retry partitions, their claims, and how settlements are committed."""
