"""The whole story on a real cluster with real brokers: what `make demo` shows and `make test` proves."""
