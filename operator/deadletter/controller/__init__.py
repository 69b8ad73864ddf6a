"""The operator: informers, reconcilers, the periodic sweep and the webhooks."""
