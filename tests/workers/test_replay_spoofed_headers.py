"""A producer spoofs our headers in messages whose letters another framework wrote."""

from deadletter.brokers.memory import MemoryServer
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message
from tests.workers.replay_scene import Scene

SPRING = (
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", bytes(4)),
    ("kafka_dlt-original-offset", bytes(7) + b"\5"),
    ("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
)


async def test_a_spoofed_header_has_no_effect_if_the_dialect_is_set(server: MemoryServer, scene: Scene):
    server.create_box(BoxSpec("payments.commands", 1))
    spoofed = ("dlq-origin-topic", b"payments.commands")
    server.seed(scene.boxes.dead, [Message(b"key-1", b"pay", (spoofed, *SPRING), 0)], 0)
    await scene.run(scene.assignment().model_copy(update={"dialect": "spring-dlt"}))
    assert await scene.messages("payments.commands") == []
    assert await scene.numbers("orders") == [1]
