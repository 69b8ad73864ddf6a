"""A replay on the memory broker: what is sent, what is settled, what is counted."""

import asyncio

import pytest

from deadletter.brokers.errors import BrokerUnreachable
from deadletter.brokers.memory import MemoryBroker, MemoryServer
from deadletter.core.headers import read_fields
from deadletter.core.letters import Category, Failure, Message
from deadletter.workers.replayer import endings
from tests.workers.replaying import Scene, adds_up, letter


@pytest.fixture
def server():
    return MemoryServer()


@pytest.fixture
async def scene(server):
    return await Scene(MemoryBroker(server)).build()


async def test_every_open_letter_goes_back_to_its_origin_once(scene):
    await scene.bury(*(letter(number) for number in range(250)))
    ending = await scene.replay()
    assert (ending.code, ending.reason) == (endings.FINISHED, "AllReplayed")
    assert await scene.numbers() == list(range(250))
    assert await scene.open_letters() == []
    (tally,) = await scene.tallies()
    assert (tally.scanned, tally.matched, tally.replayed, tally.phase) == (250, 250, 250, "Finished")
    assert tally.targets == {"orders": 250}
    assert len(tally.groups) == 1
    assert tally.samples == tuple(f"0-{number}" for number in range(10))
    assert adds_up([tally])


async def test_a_finished_replay_is_never_run_again(scene):
    await scene.bury(letter(1))
    await scene.replay()
    await scene.bury(letter(2))
    ending = await scene.replay()
    assert ending.reason == "AllReplayed"
    assert await scene.numbers() == [1]


async def test_a_replayed_message_is_clean_and_names_its_replay(scene):
    await scene.bury(letter(7, replays=1))
    await scene.replay()
    (message,) = await scene.messages()
    names = {name for name, _ in message.headers}
    known = read_fields(dict(message.headers))
    assert (known.replay, known.replays, known.id) == ("uid-1", 2, "orders/0/7")
    assert names == {"trace", "dlq-id", "dlq-replay", "dlq-replays"}
    assert (message.key, message.value) == (b"key-7", b'{"n": 7}')


async def test_to_the_retry_box_attempts_start_again(scene, server):
    await scene.bury(letter(3))
    await scene.replay(target={"kind": "Retry"})
    (waiting,) = server.boxes["orders.dlq.retry"].waiting.values()
    known = read_fields(dict(waiting.message.headers))
    assert (known.attempts, known.first_failed_at, known.origin.offset, known.replay) == (0, None, 3, "uid-1")
    assert known.id == "orders/0/3"
    assert await scene.messages() == []


async def test_the_origin_partition_is_kept_and_a_missing_one_goes_by_key(scene, server):
    kept, gone = letter(1), letter(2)
    kept.headers = tuple((n, b"1" if n == "dlq-origin-partition" else v) for n, v in kept.headers)
    gone.headers = tuple((n, b"9" if n == "dlq-origin-partition" else v) for n, v in gone.headers)
    await scene.bury(kept, gone)
    await scene.replay()
    assert server.boxes["orders"].partitions[1][0].key == b"key-1"
    assert sorted(await scene.numbers()) == [1, 2]


@pytest.mark.parametrize(
    ("select", "taken"),
    [
        ({"where": "attempts == 5 && headers['trace'] == 't3'"}, [3]),
        ({"where": "payload.n >= 8"}, [8, 9]),
        ({"ids": ["0-2", "0-5"]}, [2, 5]),
        ({"ids": ["0-2", "0-5"], "where": "payload.n == 5"}, [5]),
        ({"limit": 4}, [0, 1, 2, 3]),
        ({"where": "payload.n > 4", "limit": 2}, [5, 6]),
        ({"since": "2023-11-14T22:13:20.007Z"}, [7, 8, 9]),
        ({"until": "2023-11-14T22:13:20.002Z"}, [0, 1]),
        ({"fingerprint": "00000000"}, []),
    ],
)
async def test_a_selection_takes_exactly_its_letters(scene, select, taken):
    await scene.bury(*(letter(number) for number in range(10)))
    ending = await scene.replay(select=select)
    assert ending.reason == ("AllReplayed" if taken else "NothingMatched")
    assert await scene.numbers() == taken
    assert sorted(await scene.open_letters() + taken) == list(range(10))
    assert adds_up(await scene.tallies())


async def test_a_limit_goes_through_partitions_in_their_order(server):
    scene = await Scene(MemoryBroker(server), partitions=3).build()
    for partition in range(3):
        await scene.bury(*(letter(10 * partition + number) for number in range(4)), partition=partition)
    await scene.replay(select={"limit": 6})
    assert sorted(await scene.numbers()) == [0, 1, 2, 3, 10, 11]


async def test_an_expression_that_fails_selects_nothing_and_is_counted(scene):
    poison = letter(1)
    poison.value = b"not json"
    await scene.bury(letter(0), poison)
    await scene.replay(select={"where": "payload.n >= 0"})
    (tally,) = await scene.tallies()
    assert (tally.matched, tally.replayed, tally.skipped) == (1, 1, {"SelectorError": 1})
    assert await scene.open_letters() == [1]


async def test_letters_over_the_loop_cap_or_without_origin_stay(scene):
    nowhere = Message(b"key-3", b"{}", (("x-dlq-reason", b"broken"),))
    await scene.bury(letter(1, replays=3), letter(2), nowhere, letter(4, origin="gone"))
    await scene.replay()
    (tally,) = await scene.tallies()
    assert tally.skipped == {"LoopCap": 1, "NoOrigin": 2}
    assert (tally.matched, tally.replayed) == (4, 1)
    assert await scene.open_letters() == [1, 3, 4]
    assert adds_up([tally])


async def test_a_missing_origin_may_end_the_replay(scene):
    await scene.bury(letter(1), letter(2, origin="gone"), letter(3))
    ending = await scene.replay(onMissingOrigin="Fail")
    assert (ending.code, ending.reason) == (endings.FAILED, "OriginUnknown")
    (tally,) = await scene.tallies()
    assert (tally.replayed, tally.matched, tally.phase) == (1, 1, "Failed")
    assert await scene.open_letters() == [2, 3]
    again = await scene.replay(onMissingOrigin="Fail")
    assert again.code == endings.FAILED
    assert await scene.numbers() == [1]


async def test_a_transform_mends_and_a_failing_one_skips(scene):
    poison = letter(2)
    poison.value = b"\xff"
    await scene.bury(letter(1), poison)
    patch = [{"op": "replace", "path": "/n", "value": None}]
    await scene.replay(transform={"setHeaders": {"x-fixed": "true"}, "removeHeaders": ["trace"], "jsonPatch": patch})
    (message,) = await scene.messages()
    assert message.value == b'{"n":null}'
    assert dict(message.headers)["x-fixed"] == b"true"
    assert "trace" not in dict(message.headers)
    (tally,) = await scene.tallies()
    assert tally.skipped == {"TransformError": 1}


async def test_timestamps_are_new_unless_asked(scene):
    await scene.bury(letter(1))
    await scene.replay()
    await scene.bury(letter(2))
    await scene.replay("uid-2", timestamp="Original")
    new, old = await scene.messages()
    assert new.timestamp > 1_700_000_001_000
    assert old.timestamp == 1_700_000_000_002


async def test_a_letter_too_large_is_found_and_skipped(scene, server):
    letters = [letter(number) for number in range(40)]
    letters[17].value = b"x" * 2_000
    letters[31].value = b"x" * 2_000
    await scene.bury(*letters)
    server.boxes["orders"].max_message_bytes = 1_000
    await scene.replay()
    (tally,) = await scene.tallies()
    assert (tally.scanned, tally.matched, tally.replayed, tally.skipped) == (40, 40, 38, {"TooLarge": 2})
    assert await scene.open_letters() == [17, 31]
    assert await scene.numbers() == [number for number in range(40) if number not in (17, 31)]


async def test_a_letter_too_large_may_end_the_replay(scene, server):
    letters = [letter(number) for number in range(9)]
    letters[4].value = b"x" * 2_000
    await scene.bury(*letters)
    server.boxes["orders"].max_message_bytes = 1_000
    ending = await scene.replay(onTooLarge="Fail")
    assert (ending.code, ending.reason) == (endings.FAILED, "TooLarge")
    assert await scene.numbers() == [0, 1, 2, 3]
    assert adds_up(await scene.tallies())


async def test_a_preview_publishes_nothing_and_its_selection_is_taken_exactly(scene):
    await scene.bury(*(letter(number) for number in range(6)))
    ending = await scene.replay("dry", mode="DryRun", select={"where": "payload.n % 2 == 0"})
    (tally,) = await scene.tallies("dry")
    assert ending.reason == "DryRunFinished"
    assert (tally.matched, tally.replayed, tally.targets) == (3, 0, {"orders": 3})
    assert tally.bytes > 0
    assert await scene.numbers() == []
    await scene.bury(letter(8))
    await scene.replay("apply", preview_uid="dry")
    assert await scene.numbers() == [0, 2, 4]


async def test_what_a_preview_named_is_accounted_for(scene, server):
    await scene.bury(*(letter(number) for number in range(4)))
    await scene.replay("dry", mode="DryRun")
    await scene.replay("first", select={"ids": ["0-2"]})
    del server.boxes["orders.dlq"].partitions[0][0]
    await scene.replay("apply", preview_uid="dry")
    (tally,) = await scene.tallies("apply")
    assert tally.skipped == {"Expired": 1, "AlreadySettled": 1}
    assert (tally.matched, tally.replayed) == (4, 2)
    assert await scene.numbers() == [2, 1, 3]
    assert adds_up([tally])


async def test_ids_that_are_nowhere_count_as_expired(scene):
    await scene.bury(letter(0))
    await scene.replay(select={"ids": ["0-0", "0-99", "7-1"]})
    (tally,) = await scene.tallies()
    assert (tally.matched, tally.replayed, tally.skipped) == (3, 1, {"Expired": 2})


async def test_retention_that_ate_the_window_fails_the_replay_and_is_counted(scene, server):
    await scene.bury(*(letter(number) for number in range(6)))
    stop = asyncio.Event()
    assignment = scene.assignment(rate={"maxInFlight": 4})
    stop.set()
    assert (await scene.run(assignment, stop=stop)).code == endings.STOPPED
    frozen = await scene.run(scene.assignment(select={"limit": 1}, uid="other"))
    assert frozen.code == 0
    from deadletter.brokers.values import Step
    from deadletter.core.tallies import Span, Tally

    async with scene.broker.mover("orders.dlq", "orders.dlq.ledger", 0, "uid-1") as mover:
        await mover.commit(Step(Tally(Span(0, 0, 6), 1, 1)))
    for offset in (0, 1, 2):
        del server.boxes["orders.dlq"].partitions[0][offset]
    ending = await scene.run(assignment)
    assert (ending.code, ending.reason) == (endings.FAILED, "WindowExpired")
    (tally,) = await scene.tallies()
    assert (tally.replayed, tally.skipped) == (3, {"Expired": 2})
    assert adds_up([tally])


async def test_archived_letters_are_settled_and_can_be_restored(scene):
    await scene.bury(letter(1), letter(2))
    await scene.replay("archive", action="Archive", select={"ids": ["0-0"]})
    assert await scene.open_letters() == [2]
    assert await scene.numbers() == []
    (tally,) = await scene.tallies("archive")
    assert (tally.archived, tally.replayed) == (1, 0)
    await scene.replay("restore", select={"state": "Archived"})
    assert await scene.numbers() == [1]
    again = await scene.replay("again", select={"state": "Archived"})
    assert again.reason == "NothingMatched"


async def test_discarded_letters_are_gone(scene):
    await scene.bury(letter(1), letter(2))
    ending = await scene.replay(action="Discard", select={"where": "payload.n == 1"})
    assert ending.reason == "AllReplayed"
    assert await scene.open_letters() == [2]
    assert (await scene.tallies())[0].discarded == 1


async def test_an_observed_queue_answers_by_its_last_word_and_writes_nothing(scene, server):
    await scene.bury(*(letter(number) for number in range(5)))
    ending = await scene.replay(mode="DryRun", observe=True, select={"where": "payload.n < 3"})
    assert (ending.code, ending.reason, ending.counts["matched"]) == (0, "DryRunFinished", 3)
    assert ending.counts["samples"] == ["0-0", "0-1", "0-2"]
    assert not server.ledgers["orders.dlq.ledger"].tallies


async def test_a_broker_that_comes_back_is_waited_for(scene, server, monkeypatch):
    async def come_back(self, seconds):
        server.refuse.clear()

    monkeypatch.setattr("deadletter.workers.replayer.course.Course._wait", come_back)
    await scene.bury(letter(1))
    server.refuse["orders"] = BrokerUnreachable("nobody answers")
    assert (await scene.replay()).code == endings.FINISHED
    assert await scene.numbers() == [1]


async def test_a_broker_that_stays_away_ends_the_pod_and_another_goes_on(scene, server, monkeypatch):
    monkeypatch.setattr("deadletter.workers.replayer.course.FIRST_WAIT_S", 0.001)
    await scene.bury(letter(1))
    server.refuse["orders"] = BrokerUnreachable("nobody answers")
    ending = await scene.replay()
    assert (ending.code, ending.reason) == (endings.TRY_AGAIN, "BrokerUnreachable")
    server.refuse.clear()
    assert (await scene.replay()).code == endings.FINISHED
    assert await scene.numbers() == [1]


async def test_a_second_settler_fences_the_first(scene):
    await scene.bury(*(letter(number) for number in range(300)))

    async def steal(self, wanted):
        async with scene.broker.mover("orders.dlq", "orders.dlq.ledger", 0, "thief"):
            return wanted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deadletter.workers.replayer.pace.Pace.take", steal)
        ending = await scene.replay()
    assert (ending.code, ending.reason) == (endings.FENCED, "Fenced")
    assert await scene.numbers() == []


async def test_a_stop_leaves_whole_tallies_and_the_next_pod_goes_on(scene, monkeypatch):
    monkeypatch.setattr("deadletter.workers.replayer.walk.LETTERS", 10)
    await scene.bury(*(letter(number) for number in range(100)))
    stop = asyncio.Event()
    turns = []

    class Stopping:
        async def carry(self, outcomes):
            turns.append(len(outcomes))
            if len(turns) == 3:
                stop.set()

    ending = await scene.run(scene.assignment(), stop=stop, carrier=Stopping())
    assert ending.code == endings.STOPPED
    (tally,) = await scene.tallies()
    assert (tally.replayed, tally.next, tally.phase) == (30, 30, "Running")
    assert (await scene.replay()).code == endings.FINISHED
    assert await scene.numbers() == list(range(30, 100))
    assert (await scene.tallies())[0].replayed == 100


async def test_a_bad_expression_is_a_humans_matter(scene):
    ending = await scene.replay(select={"where": "nonsense =="})
    assert (ending.code, ending.reason) == (endings.HUMAN, "InvalidSpec")


async def test_groups_are_counted_by_cause(scene):
    other = Failure("Refused", "card 12 is blocked", Category.Validation)
    await scene.bury(letter(1), letter(2), letter(3, failure=other))
    await scene.replay("dry", mode="DryRun")
    (tally,) = await scene.tallies("dry")
    assert sorted(tally.groups.values()) == [1, 2]
    fingerprint = next(name for name, count in tally.groups.items() if count == 1)
    await scene.replay(select={"fingerprint": fingerprint})
    assert await scene.numbers() == [3]
