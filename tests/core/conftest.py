"""Properties are tried on the same cases in every run, however slow the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile("house", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("house")
