"""The chart as it was released before this version: what people upgrade from, and roll back to."""

from tests.bed import image, node, places
from tests.bed.node import Cluster
from tests.demo import story

VERSION = "0.1.0"
CHART = places.REPOSITORY / "tests" / "chart" / "previous" / f"dlq-operator-{VERSION}.tgz"


def install(cluster: Cluster) -> None:
    """The older chart with the image it names, so that an upgrade changes both; the image's content is today's."""
    older = image.name().replace(image.version(), VERSION)
    node.ctr(cluster.bed, "images", "tag", "--force", cluster.image, older)
    story.install(cluster, chart=CHART)
