"""The release before this one, as it was published: its package and its chart.

A process runs it with PYTHON_PATH; `tests` is this repository's, so that old code can run a test's own programs.
"""

import os

from tests.bed import places

VERSION = "0.2.0"
FOLDER = places.REPOSITORY / "tests" / "previous"
WHEEL = FOLDER / f"dlq_operator-{VERSION}-py3-none-any.whl"
CHART = FOLDER / f"dlq-operator-{VERSION}.tgz"
PYTHON_PATH = os.pathsep.join((str(WHEEL), str(places.REPOSITORY)))
