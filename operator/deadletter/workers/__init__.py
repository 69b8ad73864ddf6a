"""What our pods run: courier, replayer, health; no Kubernetes client, no API token."""
