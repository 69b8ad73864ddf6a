"""What kopf calls: each handler is the list of the walk."""
