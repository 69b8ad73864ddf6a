"""Requirements of teams that ran their own replay tools, one test for each."""

import json

from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Category, Failure, Message
from tests.workers.replay_scene import letter


def envelope(number: int, error: str, source: str = "orders") -> Message:
    """Return a letter whose envelope is in its JSON value."""
    value = {
        "message_id": f"m-{number}",
        "body": {"n": number},
        "source_mailbox": source,
        "delivery_count": 5,
        "last_error": f"{error}: order {number}",
        "last_error_type": error,
        "dead_lettered_at": "2026-01-01T00:00:00Z",
        "first_received_at": "2026-01-01T00:00:00Z",
    }
    return Message(b"key-%d" % number, json.dumps(value).encode(), (), 1_700_000_000_000)


async def test_a_document_is_replayed_to_the_input_topic_of_its_node(scene):
    await scene.broker.ensure(BoxSpec("prod.node-7", partitions=1))
    await scene.bury(letter(1, origin="prod.node-7"), letter(2))
    await scene.replay(select={"where": 'origin.topic == "prod.node-7"'})
    assert await scene.numbers("prod.node-7") == [1]
    assert await scene.open_letters() == [2]


async def test_retry_archive_clear_and_statistics(scene):
    broken = Failure("PermissionDenied", "no right", Category.Permission)
    await scene.bury(letter(0), letter(1), letter(2, failure=broken), letter(3, failure=broken))
    await scene.replay("statistics", mode="DryRun")
    (statistics,) = await scene.all_progress("statistics")
    assert statistics.matched == 4
    assert sorted(statistics.groups.values()) == [2, 2]
    await scene.replay("retry", select={"ids": ["0-0"]})
    await scene.replay("archive", action="Archive", select={"where": 'error.category == "Permission"', "limit": 1})
    await scene.replay("clear", action="Discard")
    counts = [
        (progress.replayed, progress.archived, progress.discarded)
        for uid in ("retry", "archive", "clear")
        for progress in await scene.all_progress(uid)
    ]
    assert counts == [(1, 0, 0), (0, 1, 0), (0, 0, 2)]
    assert await scene.open_letters() == []


async def test_the_source_id_is_kept_and_a_letter_is_sent_once(scene):
    await scene.bury(letter(5))
    await scene.replay("first")
    again = await scene.replay("second")
    (message,) = await scene.messages()
    assert dict(message.headers)["dlq-id"] == b"orders/0/5"
    assert again.reason == "NothingMatched"


async def test_a_replay_by_predicate_sends_each_letter_once(scene):
    await scene.bury(*(letter(n, failure=Failure("TimeoutError", "slow", Category.Network)) for n in range(3)))
    await scene.bury(letter(3, failure=Failure("ValueError", "bad", Category.Validation)))
    for uid in ("once", "twice"):
        await scene.replay(uid, select={"where": 'error.type == "TimeoutError"'})
    assert await scene.numbers() == [0, 1, 2]
    assert await scene.open_letters() == [3]


async def test_a_letter_with_its_envelope_in_the_value_is_selected_by_its_error(scene):
    await scene.bury(envelope(1, "TimeoutError"), envelope(2, "KeyError"))
    assignment = scene.assignment("dry", mode="DryRun", select={"where": 'error.type == "TimeoutError"'})
    await scene.run(assignment.model_copy(update={"read_values": True}))
    (progress,) = await scene.all_progress("dry")
    assert progress.matched == 1
