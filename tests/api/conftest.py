"""Fixture for an HTTP connection to an API server with our CRDs."""

import pytest

from tests.api.server import Server


@pytest.fixture
def server(crds):
    """HTTP client of the API server."""
    client = Server(crds.kubeconfig)
    yield client
    client.close()
