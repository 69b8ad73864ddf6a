"""Dead letter queues on Kubernetes."""
