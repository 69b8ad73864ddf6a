"""The API server with our kinds, behind one HTTP connection."""

import pytest

from tests.api.server import Server


@pytest.fixture
def server(crds):
    """A client of it."""
    client = Server(crds.kubeconfig)
    yield client
    client.close()
