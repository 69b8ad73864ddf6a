"""The courier: delivers messages of a source box to a service, retries by policy, parks and buries."""
