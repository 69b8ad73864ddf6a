"""State that all reconcilers share: informers, work queue, broker pool, Secret cache and observations."""
