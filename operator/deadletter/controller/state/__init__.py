"""State that is shared by all reconcilers: informer, work queue, broker pool and Secret cache."""
