"""An incident from start to end on a real cluster with real brokers: shown by `make demo`, checked by `make test`."""
