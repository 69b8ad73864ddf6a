"""Known faults that hostile tenants, producers and brokers can use."""

import asyncio
import json
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from deadletter.api.dead_letter_queues import DeadLetterQueue
from deadletter.brokers.connect import open_broker
from deadletter.brokers.errors import BrokerError
from deadletter.brokers.memory import MemoryBroker, MemoryServer
from deadletter.brokers.types import MonitoredBox
from deadletter.cli.letters import _table, list_fields
from deadletter.controller.context import OperatorContext
from deadletter.controller.reconcile.facts import gather_queue_facts
from deadletter.controller.reconcile.queue import validate
from deadletter.core.box_types import BoxSpec
from deadletter.core.dialects.reader import read_letter
from deadletter.core.fingerprint import top_frame
from deadletter.core.ledger.records import encode_chunk, settled_key
from deadletter.core.letters import Message, Place
from deadletter.core.message_redaction import redact
from deadletter.core.replay_progress import SettledAs
from deadletter.kube import CONNECTIONS, QUEUES, Body, Resource
from deadletter.net.address_guard import is_dialable
from deadletter.plan.queue_checks import box_is_free
from deadletter.settings import Settings
from tests.brokers.connections import kafka_at, redis_at
from tests.brokers.helpers import publish_all
from tests.controller.operator_process import KubeNamespace, OperatorProcess
from tests.known_faults.faults import known_fault, wait_until, wait_until_async
from tests.known_faults.liars import listening, lying_kafka, rebind
from tests.known_faults.measures import measure
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import no_secret
from tests.workers.replay_scene import Scene

VICTIM = "payments.commands"
SPRING = (
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", bytes(4)),
    ("kafka_dlt-original-offset", bytes(7) + b"\5"),
    ("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
)
FORGED_TOPIC = ("kafka_dlt-original-topic", VICTIM.encode())


async def replayed_to(victim: str, dialect: str, forged: tuple[str, bytes]) -> list[Message]:
    """Replay a letter with a forged header and return what arrives in a topic that is not of the queue."""
    server = MemoryServer()
    scene = await Scene(MemoryBroker(server)).build()
    server.create_box(BoxSpec(victim, 1))
    server.seed(scene.boxes.dead, [Message(b"key", b"pay 1,000,000", (forged, *SPRING), 0)], 0)
    await scene.run(scene.assignment().model_copy(update={"dialect": dialect}))
    return await scene.messages(victim)


@known_fault("P-ORIGIN-OURS", "a dlq-origin-topic header that a producer forged chooses where a letter is sent")
async def test_a_forged_header_of_ours_does_not_choose_where_an_adopted_letter_goes() -> None:
    assert await replayed_to(VICTIM, "Auto", ("dlq-origin-topic", VICTIM.encode())) == []


@known_fault("P-ORIGIN-REPEATED", "the first of two headers that name the origin wins, which the producer forged")
async def test_a_forged_first_header_of_a_dialect_does_not_choose_where_a_letter_goes() -> None:
    assert await replayed_to(VICTIM, "spring-dlt", FORGED_TOPIC) == []


@known_fault("P-ORIGIN-LEDGER", "a forged header sends a letter into the queue's own ledger and settles all others")
async def test_a_forged_header_cannot_write_to_the_ledger(kafka: str, queue: BrokerQueue) -> None:
    scene = await Scene(queue.broker, f"{queue.prefix}orders", {"kafka": {"bootstrapServers": [kafka]}}).build()
    dead, ledger = scene.boxes.dead, scene.boxes.ledger
    key = settled_key(dead, 0, SettledAs.Discarded, 0)
    to_ledger = ("kafka_dlt-original-topic", ledger.encode())
    honest = [Message(b"key-%d" % n, b"{}", SPRING, 0) for n in range(5)]
    forged = Message(key, encode_chunk(key, BitMap(range(65_536))), (to_ledger, *SPRING), 0)
    await publish_all(queue.broker, dead, [*honest, forged])
    assignment = scene.assignment(select={"ids": ["0-5"]}).model_copy(update={"dialect": "spring-dlt"})
    await scene.run(assignment)
    monitor = queue.broker.monitor()
    monitored = MonitoredBox(dead, ledger, scene.boxes.retry, "spring-dlt", False, None)
    stats = (await monitor.sweep([monitored], int(time.time() * 1000)))[dead]
    await monitor.close()
    if isinstance(stats, BrokerError):
        raise stats
    assert stats.depth >= 5


def context_with(*bodies: tuple[Resource, Body]) -> OperatorContext:
    """Return the context of an operator whose informers hold these objects."""
    context = OperatorContext(Settings(), None)  # type: ignore[arg-type]
    for resource, body in bodies:
        context.informers[resource].upsert(body)
    return context


def body(resource: Resource, namespace: str, name: str, spec: Body, made: str, **more: Any) -> Body:
    meta = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "resourceVersion": "1", "generation": 1}
    meta["creationTimestamp"] = f"{made}T00:00:00Z"
    return {"apiVersion": "deadletter.dev/v1alpha1", "kind": resource.kind, "metadata": meta, "spec": spec, **more}


def condition(kind: str, status: str, reason: str) -> Body:
    one = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {"status": {"observedGeneration": 1, "conditions": [one]}}


BROKER = {"kafka": {"bootstrapServers": ["kafka.infra.svc:9092"]}}
FAILED = condition("Ready", "False", "AuthenticationFailed")
READY = condition("Ready", "True", "Ready")
DEAD_BOX = "orders.billing.dlq"


@known_fault("P-SQUAT", "a queue that never reached its broker holds the name of a dead box against all others")
async def test_a_queue_that_never_reached_its_broker_holds_no_box() -> None:
    squatter: Body = {"brokerRef": {"name": "broker"}, "dead": {"name": DEAD_BOX}}
    owner: Body = {
        "brokerRef": {"name": "broker"},
        "source": {"name": "orders", "group": "billing"},
        "delivery": {"http": {"url": "http://orders.example/"}},
    }
    queue = body(QUEUES, "shop", "orders", owner, "2026-02-01")
    context = context_with(
        (CONNECTIONS, body(CONNECTIONS, "tenant", "broker", BROKER, "2026-01-01", **FAILED)),
        (QUEUES, body(QUEUES, "tenant", "squatter", squatter, "2026-01-01", **FAILED)),
        (CONNECTIONS, body(CONNECTIONS, "shop", "broker", BROKER, "2026-02-01")),
        (QUEUES, queue),
    )
    parsed = DeadLetterQueue.from_body(queue)
    assert box_is_free(parsed, await gather_queue_facts(context, parsed, confirm_missing=False)) is None


@known_fault("P-HOOK", "the webhook confirms that a queue of another namespace has a box of this name")
async def test_the_webhook_does_not_confirm_what_other_namespaces_have() -> None:
    probe = body(QUEUES, "tenant", "probe", {"brokerRef": {"name": "broker"}, "dead": {"name": DEAD_BOX}}, "2026-02-01")
    ours = (CONNECTIONS, body(CONNECTIONS, "tenant", "broker", BROKER, "2026-02-01"))
    theirs = (
        (CONNECTIONS, body(CONNECTIONS, "bank", "broker", BROKER, "2026-01-01", **READY)),
        (QUEUES, body(QUEUES, "bank", "payroll", dict(probe["spec"]), "2026-01-01", **READY)),
    )
    del probe["metadata"]["creationTimestamp"]
    assert await validate(context_with(ours, *theirs), probe) == await validate(context_with(ours), probe)


@known_fault("P-FRAMES-KAFKA", "one frame of a Kafka broker takes as much of the operator's memory as it likes")
def test_a_large_frame_of_a_kafka_broker_is_refused() -> None:
    assert measure("read_frame", "kafka", 160) < 100


@known_fault("P-FRAMES-REDIS", "one reply of a Redis takes as much of the operator's memory as it likes")
def test_a_large_reply_of_a_redis_is_refused() -> None:
    assert measure("read_frame", "redis", 160) < 100


@known_fault("P-BOMB", "a batch of 4 KiB takes 256 MiB to read")
def test_a_batch_that_decompresses_to_far_more_than_its_size_is_refused(tmp_path: Path) -> None:
    measure("write_bomb", tmp_path / "batch", 128)
    assert measure("read_bomb", tmp_path / "batch") < 64


@known_fault("P-CACHE", "error types of any size found in letters are kept in a cache")
def test_large_error_types_are_not_kept_in_memory() -> None:
    assert measure("read_kinds", 30) < 16


@known_fault("P-LEDGER", "reading 18 KiB of ledger takes more than a second of processor time")
def test_a_small_ledger_that_settles_many_offsets_is_cheap_to_read() -> None:
    assert measure("read_settlements", 400) < 0.4


@known_fault("P-REGEX", "finding the top frame of a stack trace takes time that grows with the square of its size")
def test_the_top_frame_of_a_long_stack_trace_is_found_in_linear_time() -> None:
    before = time.process_time()
    top_frame("\n" * 32_768)
    assert time.process_time() - before < 0.2


@known_fault("P-METRICS", "reading /metrics stops the event loop while it is rendered")
def test_metrics_are_rendered_off_the_event_loop() -> None:
    assert measure("event_loop_block", 1_500) < 0.5


@known_fault("P-REBIND-KAFKA", "a name that resolves to another address after the check passes the address guard")
async def test_a_kafka_name_that_is_rebound_to_loopback_is_not_dialled() -> None:
    async with listening("127.0.0.1") as loopback:
        rebind("broker.tenant.example", "127.0.0.1")
        spec = kafka_at(f"broker.tenant.example:{loopback.port}")
        async with open_broker(spec, no_secret, ()) as broker:
            with pytest.raises((BrokerError, TimeoutError)):
                await asyncio.wait_for(broker.server_info(), 8)
    assert loopback.visits == 0


@known_fault("P-REBIND-REDIS", "a name that resolves to another address after the check passes the address guard")
async def test_a_redis_name_that_is_rebound_to_loopback_is_not_dialled() -> None:
    async with listening("127.0.0.1") as loopback:
        rebind("broker.tenant.example", "127.0.0.1")
        spec = redis_at(f"redis://broker.tenant.example:{loopback.port}/0")
        async with open_broker(spec, no_secret, ()) as broker:
            with pytest.raises((BrokerError, TimeoutError)):
                await asyncio.wait_for(broker.server_info(), 8)
    assert loopback.visits == 0


@known_fault("P-ADV", "an address that a broker advertises after the first metadata is dialled without a check")
async def test_a_forbidden_address_in_later_metadata_is_not_dialled() -> None:
    async with (
        listening("127.0.0.2") as forbidden,
        lying_kafka(("127.0.0.2", forbidden.port)) as liar,
        open_broker(kafka_at(f"127.0.0.1:{liar.port}"), no_secret, ("127.0.0.1/32",)) as broker,
    ):
        for call in (broker.server_info, lambda: broker.describe(["orders"]), broker.server_info):
            with suppress(BrokerError, TimeoutError):
                await asyncio.wait_for(call(), 8)
    assert forbidden.visits == 0


@known_fault("P-ADDRESSES", "metadata services of three clouds may be dialled")
def test_metadata_services_of_all_clouds_are_forbidden() -> None:
    assert [one for one in ("168.63.129.16", "fd20:ce::254", "fd00:c1::a9fe:a9fe") if is_dialable(one)] == []


@known_fault("P-ESCAPES", "control characters of letters reach the terminal of whoever lists them")
def test_control_characters_of_letters_are_escaped_in_a_table() -> None:
    headers = (
        ("dlq-origin-topic", b"orders"),
        ("dlq-error-type", b"\x1b]0;title\x07\x1b[2J"),
        ("dlq-error-message", b"\x1b[8mhidden \xc2\x9b31m"),
    )
    printed = _table([list_fields(read_letter(Message(b"key", b"{}", headers, 0), Place("dead", 0, 1)))])
    assert [character for character in printed if not character.isprintable() and character != "\n"] == []


@known_fault("P-REDACT", "a JSON key that is there twice is shown although it is to be redacted")
def test_a_key_that_is_there_twice_is_redacted() -> None:
    message = Message(None, b'{"payer": {"card": "4111"}, "payer": {}}', (), 0)
    assert b"4111" not in (redact(message, (), ("/payer/card",)).value or b"")


OPERATOR_WORKERS = 32


def count_visitors(silent: list[socket.socket], visitors: list[socket.socket]) -> int:
    """Accept new connections, send nothing, and return the number of all connections."""
    for one in silent:
        one.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                visitors.append(one.accept()[0])
    return len(visitors)


@known_fault("P-TARPIT", "brokers that accept connections and stay silent hold up every reconcile")
async def test_silent_brokers_do_not_hold_up_a_healthy_one(
    operator: OperatorProcess, kube: KubeNamespace, redis: str
) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512)) for _ in range(5)]
        servers = [f"127.0.0.1:{one.getsockname()[1]}" for one in silent]
        spec = {"kafka": {"bootstrapServers": servers}}
        items = [
            {
                "apiVersion": "deadletter.dev/v1alpha1",
                "kind": "BrokerConnection",
                "metadata": {"name": f"silent-{number}", "namespace": kube.namespace},
                "spec": spec,
            }
            for number in range(40)
        ]
        kube.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        visitors: list[socket.socket] = []
        await wait_until(lambda: count_visitors(silent, visitors) >= OPERATOR_WORKERS, 20)  # all workers are blocked
        stack.callback(lambda: [one.close() for one in visitors])
        kube.redis(redis, "healthy")

        async def is_ready() -> bool:
            return kube.condition("BrokerConnection", "healthy", "Ready").get("status") == "True"

        await wait_until_async(is_ready, 15)
        assert await is_ready()
