"""The whole way on a real node: one worker walks all of it, chapter by chapter."""

import pytest

HERE = "tests/e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the node and goes to one worker, one after the other."""
    for item in items:
        if HERE in item.path.as_posix():
            item.add_marker(pytest.mark.node)
            item.add_marker(pytest.mark.xdist_group("node"))
            item.add_marker(pytest.mark.timeout(1200))
