"""Which dead box a person means by the name of a queue: asked at the API server, with the rights of this pod."""

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.cli.source import LetterSource, UsageError, apply_queue
from deadletter.kube import CONNECTIONS, QUEUES, SECRETS, Body, KubeClient, Resource, connect
from deadletter.net.secrets import Secrets, decode_secret
from deadletter.settings import Settings

RATE, BURST = 20.0, 20
READABLE_LABEL = "deadletter.dev/readable"


async def find_queue_source(namespace: str, name: str) -> LetterSource:
    """The counter of a queue; CounterError or ApiError says what is missing."""
    settings = Settings()
    async with connect(RATE, BURST) as cluster:
        queue = DeadLetterQueue.from_body(await _get(cluster, QUEUES, namespace, name))
        body = await _get(cluster, CONNECTIONS, namespace, queue.spec.broker_ref.name)
        broker = BrokerConnection.from_body(body).spec
        secrets = await _secrets(cluster, namespace, broker.secret_names, settings.secrets_require_label)
    boxes = queue.boxes(broker.is_redis)
    return apply_queue(LetterSource(broker, boxes.dead, boxes.ledger, secrets, settings.allow_addresses), queue.spec)


async def _get(cluster: KubeClient, resource: Resource, namespace: str, name: str) -> Body:
    body = await cluster.get(resource, namespace, name)
    if body is None:
        raise UsageError(f"there is no {resource.kind} {name} in namespace {namespace}")
    return body


async def _secrets(cluster: KubeClient, namespace: str, names: tuple[str, ...], require_label: bool) -> Secrets:
    """All Secrets of a connection, read once: a list of letters does not outlive a password."""
    kept: dict[tuple[str, str], bytes] = {}
    for name in names:
        body = await _get(cluster, SECRETS, namespace, name)
        if require_label and (body["metadata"].get("labels") or {}).get(READABLE_LABEL) != "true":
            raise UsageError(f"Secret {name} needs the label {READABLE_LABEL}=true before it is read")
        kept |= {(name, key): value for key, value in decode_secret(body).items()}
    return lambda name, key: kept[name, key]
