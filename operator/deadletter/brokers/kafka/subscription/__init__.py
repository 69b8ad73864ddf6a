"""The consumer-group subscription of a courier: source and retry partitions, their claims, and their settlements."""
