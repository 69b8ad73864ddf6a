"""The product in a cluster, as people use it."""
