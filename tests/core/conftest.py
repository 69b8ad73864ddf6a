"""Run hypothesis deterministically and without deadlines, because machines differ in speed."""

from hypothesis import HealthCheck, settings

settings.register_profile("repo", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("repo")
