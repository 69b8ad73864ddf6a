"""Find the dead box of a queue through the API server, with the rights of this pod or of KUBECONFIG."""

from deadletter.api.broker_connections import BrokerConnection
from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.cli.letter_source import LetterSource, UsageError, apply_queue
from deadletter.kube import CONNECTIONS, QUEUES, SECRETS, Body, KubeClient, Resource, connect
from deadletter.net.secrets import READABLE_LABEL, Secrets, decode_secret
from deadletter.settings import Settings

REQUESTS_PER_SECOND, BURST = 20.0, 20


async def find_queue_source(namespace: str, name: str) -> LetterSource:
    """Return the dead box of a queue and how to read it; UsageError or ApiError names what is missing."""
    settings = Settings()
    async with connect(REQUESTS_PER_SECOND, BURST) as cluster:
        queue = DeadLetterQueue.from_body(await _get(cluster, QUEUES, namespace, name))
        body = await _get(cluster, CONNECTIONS, namespace, queue.spec.broker_ref.name)
        broker = BrokerConnection.from_body(body).spec
        secrets = await _read_secrets(cluster, namespace, broker.secret_names, settings.secrets_require_label)
    boxes = queue.boxes(broker.is_redis)
    return apply_queue(LetterSource(broker, boxes.dead, boxes.ledger, secrets, settings.allow_addresses), queue.spec)


async def _get(cluster: KubeClient, resource: Resource, namespace: str, name: str) -> Body:
    body = await cluster.get(resource, namespace, name)
    if body is None:
        message = f"{resource.kind} {name} does not exist in namespace {namespace}; create it, or check the name and -n"
        raise UsageError(message)
    return body


async def _read_secrets(cluster: KubeClient, namespace: str, names: tuple[str, ...], require_label: bool) -> Secrets:
    """Read all Secrets of a connection once; a command ends before they are rotated."""
    values: dict[tuple[str, str], bytes] = {}
    for name in names:
        body = await _get(cluster, SECRETS, namespace, name)
        if require_label and (body["metadata"].get("labels") or {}).get(READABLE_LABEL) != "true":
            raise UsageError(f"Secret {name} is read only with the label {READABLE_LABEL}=true; add it")
        values |= {(name, key): value for key, value in decode_secret(body).items()}
    return lambda name, key: values[name, key]
