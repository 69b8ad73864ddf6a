"""A later version wrote into the ledger: what is known stays exact, the rest is skipped, counted and left alone."""

import pytest
from structlog.testing import capture_logs

from deadletter.brokers.errors import LedgerTooNew
from deadletter.brokers.kafka.subscription import subscription as kafka_desk
from deadletter.brokers.types import CommitBatch, Delivered, Parked
from deadletter.core.boxes import BoxStats
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.ledger import records as ledger_records
from deadletter.core.replay_progress import SettledAs
from tests.brokers.opening import fresh_name
from tests.brokers.staging import (
    Boxes,
    claim_some,
    contents,
    lay,
    make_boxes,
    now,
    numbered,
    republish,
    tally_of,
    values,
)
from tests.versions import future
from tests.versions.sites import Site


async def replay_some(site: Site, boxes: Boxes, count: int, uid: str) -> None:
    """Replay the first open letters, at most `count`."""
    letters = await contents(site.broker, boxes.dead)
    async with site.broker.partition_writer(boxes.dead, boxes.ledger, 0, uid) as mover:
        chosen = [one for one in letters if mover.is_open(one.place.offset)][:count]
        offsets = [one.place.offset for one in chosen]
        tally = tally_of(letters, replayed=len(chosen))
        await mover.commit(CommitBatch(tally, republish(boxes.target, chosen), {SettledAs.Replayed: offsets}))


async def grown(site: Site, name: str, partitions: int = 1) -> Boxes:
    """Six letters, two of them replayed, and a ledger that a later version wrote into."""
    boxes = await make_boxes(site.broker, fresh_name(name), partitions)
    await lay(site.broker, boxes.dead, numbered(6))
    await replay_some(site, boxes, 2, "uid-1")
    known = [future.grown_tally("uid-2"), future.grown_word("pod-2", circuit="Tripped")]
    await site.write_ledger(boxes.ledger, [*future.unreadable(), *known])
    return boxes


async def test_a_sweep_tells_what_it_knows_and_counts_the_rest(site: Site) -> None:
    boxes = await grown(site, "sweep")
    with capture_logs() as logs:
        reading = await site.reading(boxes)
    assert (reading.depth, reading.caught_up) == (4, True)
    assert reading.progress["uid-2"] == (future.TALLY,)
    assert set(reading.progress) == {"uid-1", "uid-2"}
    (word,) = reading.couriers
    assert word == WorkerStatus("pod-2", "Tripped", at=word.at)
    assert reading.skipped == len(future.unreadable())
    assert {uid: [*tallies] for uid, tallies in (await site.broker.replay_progress(boxes.ledger)).items()} == {
        uid: [*tallies] for uid, tallies in reading.progress.items()
    }
    told = sorted(line["kind"] for line in logs if line["event"] == "ledger record skipped")
    assert told == sorted({"lease", "quota", "tally", "courier", "\ufffd\ufffd"})  # once for each kind


async def test_a_replay_goes_on_and_leaves_unknown_records_alone(site: Site) -> None:
    boxes = await grown(site, "replay")
    before = dict(await site.read_ledger(boxes.ledger))
    await replay_some(site, boxes, 9, "uid-3")
    assert await values(site.broker, boxes.target) == [one.value for one in numbered(6)]
    records = await site.read_ledger(boxes.ledger)
    for key, value in future.unreadable():
        assert [found for found in records if found[0] == key] == [(key, before.get(key, value))]
    await site.broker.delete_replay_records(boxes.ledger, "uid-2")
    assert set(await site.broker.replay_progress(boxes.ledger)) == {"uid-1", "uid-3"}


async def test_a_courier_goes_on(site: Site) -> None:
    boxes = await grown(site, "courier")
    await lay(site.broker, boxes.source, numbered(3))
    async with site.broker.subscribe(boxes.desk()) as desk:
        for claim in await claim_some(desk, 3):
            await desk.settle(claim, Parked(claim.message, now()))
        for claim in await claim_some(desk, 3):
            await desk.settle(claim, Delivered())
    assert (await site.reading(boxes)).parked == 0


async def test_a_letter_settled_for_an_unknown_reason_is_settled(kafka_site: Site) -> None:
    site, boxes = kafka_site, await grown(kafka_site, "reason")
    quarantined = future.settled(boxes.dead, 0, "quarantined", 2, 3)
    await site.write_ledger(boxes.ledger, [quarantined])
    assert (await site.reading(boxes)).depth == 2
    assert list((await site.broker.settled_offsets(boxes.dead, boxes.ledger))[0]) == [0, 1, 2, 3]
    await replay_some(site, boxes, 9, "uid-3")
    assert await values(site.broker, boxes.target) == [f"v{n}".encode() for n in (0, 1, 4, 5)]
    reading = await site.reading(boxes)
    assert (reading.depth, reading.skipped) == (0, len(future.unreadable()))
    records = await site.read_ledger(boxes.ledger)
    assert [one for one in records if one[0] == quarantined[0]] == [quarantined]  # never written again
    await site.broker.reset_ledger(boxes.dead, boxes.ledger)
    assert (await site.reading(boxes)).depth == 6


async def test_a_parked_letter_settled_for_an_unknown_reason_is_not_delivered(kafka_site: Site) -> None:
    site, boxes = kafka_site, await grown(kafka_site, "parked")
    await lay(site.broker, boxes.source, numbered(3))
    async with site.broker.subscribe(boxes.desk()) as desk:
        for claim in await claim_some(desk, 3):
            await desk.settle(claim, Parked(claim.message, now()))
    first = (await contents(site.broker, boxes.retry))[0].place.offset
    await site.write_ledger(boxes.ledger, [future.settled(boxes.retry, 0, "quarantined", first)])
    assert (await site.reading(boxes)).parked == 2
    async with site.broker.subscribe(boxes.desk()) as desk:
        assert sorted(claim.message.value for claim in await claim_some(desk, 2)) == [b"v1", b"v2"]


async def test_settlements_of_an_unknown_version_stop_their_partition_alone(kafka_site: Site) -> None:
    """Which letters they settle cannot be told, and to take them for open would send them twice."""
    site, boxes = kafka_site, await grown(kafka_site, "version", partitions=2)
    sound = await grown(kafka_site, "sound")
    key = ledger_records.settled_key(boxes.dead, 1, SettledAs.Replayed, 0)
    await site.write_ledger(boxes.ledger, [future.of_version_2(key)], partition=1)
    with pytest.raises(LedgerTooNew, match=f"{key.decode()}.*version 2.*[Uu]pgrade"):
        async with site.broker.partition_writer(boxes.dead, boxes.ledger, 1, "uid-3"):
            pass
    await replay_some(site, boxes, 9, "uid-3")
    assert sorted(await values(site.broker, boxes.target)) == [one.value for one in numbered(6)]
    registers = site.broker.monitor()
    try:
        found = await registers.sweep([boxes.watched, sound.watched], now())
    finally:
        await registers.close()
    assert isinstance(found[boxes.dead], LedgerTooNew)
    assert isinstance(found[sound.dead], BoxStats)


async def test_a_parked_letter_with_settlements_of_an_unknown_version_waits(
    kafka_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_desk, "JOIN_TIMEOUT", 10.0)  # so long a desk waits for a partition that stays shut
    site, boxes = kafka_site, await grown(kafka_site, "waits", partitions=2)
    await lay(site.broker, boxes.source, numbered(2), 0)
    await lay(site.broker, boxes.source, numbered(2, 2), 1)
    async with site.broker.subscribe(boxes.desk()) as desk:
        for claim in await claim_some(desk, 4):
            await desk.settle(claim, Parked(claim.message, now()))
    key = ledger_records.settled_key(boxes.retry, 1, SettledAs.Delivered, 0)
    await site.write_ledger(boxes.ledger, [future.of_version_2(key)], partition=1)
    async with site.broker.subscribe(boxes.desk()) as desk:
        claims = await claim_some(desk, 2)
        assert sorted(claim.message.value for claim in claims) == [b"v0", b"v1"]
        assert isinstance(desk.blocked_by, LedgerTooNew)


async def test_a_replay_whose_own_records_are_of_an_unknown_version_stops(site: Site) -> None:
    """It cannot tell where to go on; to begin again would count letters, or send them, twice."""
    boxes = await grown(site, "own")
    with pytest.raises(LedgerTooNew, match="tally/uid-8/0.*[Uu]pgrade"):
        async with site.broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-8"):
            pass
    if site.kind == "redis":
        return
    for number, key in enumerate((ledger_records.selected_key("uid-4", 0, 0), ledger_records.produced_key("uid-5", 0, "t", 0, 0))):
        await site.write_ledger(boxes.ledger, [future.of_version_2(key)])
        with pytest.raises(LedgerTooNew, match=key.decode()):
            async with site.broker.partition_writer(boxes.dead, boxes.ledger, 0, f"uid-{4 + number}"):
                pass
