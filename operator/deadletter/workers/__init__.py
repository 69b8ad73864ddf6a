"""The programs of the worker pods: courier, replay and redrive. They use no Kubernetes client and no API token."""
