"""A later version wrote into the ledger: known records are read exactly, others are skipped, counted and kept."""

import pytest
from structlog.testing import capture_logs

from deadletter.brokers.errors import LedgerTooNew
from deadletter.brokers.kafka.subscription import assignment
from deadletter.brokers.types import CommitBatch, Delivered, Parked
from deadletter.core.box_types import BoxStats
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger import records as ledger_records
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import now_ms
from tests.brokers.connections import fresh_name
from tests.brokers.helpers import (
    Boxes,
    claim_some,
    make_boxes,
    numbered_messages,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    values,
)
from tests.versions import future
from tests.versions.sites import Site


async def replay_some(site: Site, boxes: Boxes, count: int, uid: str) -> None:
    """Replay the first open letters, at most `count`."""
    letters = await read_all(site.broker, boxes.dead)
    async with site.broker.partition_writer(boxes.dead, boxes.ledger, 0, uid) as writer:
        chosen = [one for one in letters if writer.is_open(one.place.offset)][:count]
        offsets = [one.place.offset for one in chosen]
        progress = progress_of(letters, replayed=len(chosen))
        await writer.commit(CommitBatch(progress, publications_to(boxes.target, chosen), {SettledAs.Replayed: offsets}))


async def with_later_records(site: Site, name: str, partitions: int = 1) -> Boxes:
    """Create a box with six letters, two of them replayed, and a ledger that a later version wrote into."""
    boxes = await make_boxes(site.broker, fresh_name(name), partitions)
    await publish_all(site.broker, boxes.dead, numbered_messages(6))
    await replay_some(site, boxes, 2, "uid-1")
    known = [future.extended_progress("uid-2"), future.extended_heartbeat("pod-2", circuit="Tripped")]
    await site.write_ledger(boxes.ledger, [*future.unreadable(), *known])
    return boxes


async def test_a_sweep_reads_known_records_and_counts_the_others(site: Site) -> None:
    boxes = await with_later_records(site, "sweep")
    with capture_logs() as logs:
        stats = await site.box_stats(boxes)
    assert (stats.depth, stats.caught_up) == (4, True)
    assert stats.progress["uid-2"] == (future.PROGRESS,)
    assert set(stats.progress) == {"uid-1", "uid-2"}
    (status,) = stats.couriers
    assert status == WorkerStatus("pod-2", "Tripped", at=status.at)
    assert stats.skipped == len(future.unreadable())
    assert {uid: [*progress] for uid, progress in (await site.broker.replay_progress(boxes.ledger)).items()} == {
        uid: [*progress] for uid, progress in stats.progress.items()
    }
    kinds = sorted(line["kind"] for line in logs if line["event"] == "ledger record skipped")
    assert kinds == sorted({"lease", "quota", "tally", "courier", "\ufffd\ufffd"})  # once for each kind


async def test_a_replay_continues_and_keeps_unknown_records(site: Site) -> None:
    boxes = await with_later_records(site, "replay")
    before = dict(await site.read_ledger(boxes.ledger))
    await replay_some(site, boxes, 9, "uid-3")
    assert await values(site.broker, boxes.target) == [one.value for one in numbered_messages(6)]
    records = await site.read_ledger(boxes.ledger)
    for key, value in future.unreadable():
        assert [found for found in records if found[0] == key] == [(key, before.get(key, value))]
    await site.broker.delete_replay_records(boxes.ledger, "uid-2")
    assert set(await site.broker.replay_progress(boxes.ledger)) == {"uid-1", "uid-3"}


async def test_a_courier_continues(site: Site) -> None:
    boxes = await with_later_records(site, "courier")
    await publish_all(site.broker, boxes.source, numbered_messages(3))
    async with site.broker.subscribe(boxes.subscription()) as subscription:
        for claim in await claim_some(subscription, 3):
            await subscription.settle(claim, Parked(claim.message, now_ms()))
        for claim in await claim_some(subscription, 3):
            await subscription.settle(claim, Delivered())
    assert (await site.box_stats(boxes)).parked == 0


async def test_a_letter_settled_for_an_unknown_reason_is_settled(kafka_site: Site) -> None:
    site, boxes = kafka_site, await with_later_records(kafka_site, "reason")
    quarantined = future.settled(boxes.dead, 0, "quarantined", 2, 3)
    await site.write_ledger(boxes.ledger, [quarantined])
    assert (await site.box_stats(boxes)).depth == 2
    assert list((await site.broker.settled_offsets(boxes.dead, boxes.ledger))[0]) == [0, 1, 2, 3]
    await replay_some(site, boxes, 9, "uid-3")
    assert await values(site.broker, boxes.target) == [f"v{n}".encode() for n in (0, 1, 4, 5)]
    stats = await site.box_stats(boxes)
    assert (stats.depth, stats.skipped) == (0, len(future.unreadable()))
    records = await site.read_ledger(boxes.ledger)
    assert [one for one in records if one[0] == quarantined[0]] == [quarantined]  # not written again
    await site.broker.reset_ledger(boxes.dead, boxes.ledger)
    assert (await site.box_stats(boxes)).depth == 6


async def test_a_parked_letter_settled_for_an_unknown_reason_is_not_delivered(kafka_site: Site) -> None:
    site, boxes = kafka_site, await with_later_records(kafka_site, "parked")
    await publish_all(site.broker, boxes.source, numbered_messages(3))
    async with site.broker.subscribe(boxes.subscription()) as subscription:
        for claim in await claim_some(subscription, 3):
            await subscription.settle(claim, Parked(claim.message, now_ms()))
    first = (await read_all(site.broker, boxes.retry))[0].place.offset
    await site.write_ledger(boxes.ledger, [future.settled(boxes.retry, 0, "quarantined", first)])
    assert (await site.box_stats(boxes)).parked == 2
    async with site.broker.subscribe(boxes.subscription()) as subscription:
        assert sorted(claim.message.value for claim in await claim_some(subscription, 2)) == [b"v1", b"v2"]


async def test_settlements_of_an_unknown_version_stop_only_their_partition(kafka_site: Site) -> None:
    """The settled letters are unknown, and treating them as open would send them twice."""
    site, boxes = kafka_site, await with_later_records(kafka_site, "version", partitions=2)
    sound = await with_later_records(kafka_site, "sound")
    key = ledger_records.settled_key(boxes.dead, 1, SettledAs.Replayed, 0)
    await site.write_ledger(boxes.ledger, [future.with_version_2(key)], partition=1)
    with pytest.raises(LedgerTooNew, match=f"{key.decode()}.*version 2.*[Uu]pgrade"):
        async with site.broker.partition_writer(boxes.dead, boxes.ledger, 1, "uid-3"):
            pass
    await replay_some(site, boxes, 9, "uid-3")
    assert sorted(await values(site.broker, boxes.target)) == [one.value for one in numbered_messages(6)]
    monitor = site.broker.monitor()
    try:
        found = await monitor.sweep([boxes.monitored, sound.monitored], now_ms())
    finally:
        await monitor.close()
    assert isinstance(found[boxes.dead], LedgerTooNew)
    assert isinstance(found[sound.dead], BoxStats)


async def test_a_parked_letter_with_settlements_of_an_unknown_version_waits(
    kafka_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "JOIN_TIMEOUT_S", 10.0)  # how long a subscription waits for a blocked partition
    site, boxes = kafka_site, await with_later_records(kafka_site, "waits", partitions=2)
    await publish_all(site.broker, boxes.source, numbered_messages(2), 0)
    await publish_all(site.broker, boxes.source, numbered_messages(2, 2), 1)
    async with site.broker.subscribe(boxes.subscription()) as subscription:
        for claim in await claim_some(subscription, 4):
            await subscription.settle(claim, Parked(claim.message, now_ms()))
    key = ledger_records.settled_key(boxes.retry, 1, SettledAs.Delivered, 0)
    await site.write_ledger(boxes.ledger, [future.with_version_2(key)], partition=1)
    async with site.broker.subscribe(boxes.subscription()) as subscription:
        claims = await claim_some(subscription, 2)
        assert sorted(claim.message.value for claim in claims) == [b"v0", b"v1"]
        assert isinstance(subscription.blocked_by, LedgerTooNew)


async def test_a_replay_whose_own_records_are_of_an_unknown_version_stops(site: Site) -> None:
    """It does not know where to continue, and starting again would count or send letters twice."""
    boxes = await with_later_records(site, "own")
    with pytest.raises(LedgerTooNew, match="tally/uid-8/0.*[Uu]pgrade"):
        async with site.broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-8"):
            pass
    if site.kind == "redis":
        return
    for number, key in enumerate(
        (ledger_records.selected_key("uid-4", 0, 0), ledger_records.produced_key("uid-5", 0, "t", 0, 0))
    ):
        await site.write_ledger(boxes.ledger, [future.with_version_2(key)])
        with pytest.raises(LedgerTooNew, match=key.decode()):
            async with site.broker.partition_writer(boxes.dead, boxes.ledger, 0, f"uid-{4 + number}"):
                pass
