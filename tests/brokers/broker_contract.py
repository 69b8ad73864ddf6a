"""Tests of the broker contract: the same for the broker in memory, Kafka and Redis.

A subclass or its module provides the fixture `broker`. The fixture `fresh` makes unique names.
"""

import pytest

from deadletter.brokers.contract import Broker
from deadletter.brokers.errors import BoxAppeared, BoxMissing, BrokerError, Fenced
from deadletter.brokers.types import Buried, CommitBatch, MonitoredBox, Parked
from deadletter.core.box_types import BoxSpec
from deadletter.core.heartbeats import WorkerStatus
from deadletter.core.replay_progress import SettledAs
from deadletter.wall_clock import now_ms
from tests.brokers.group_offsets_contract import GroupOffsetsContract
from tests.brokers.helpers import (
    UNUSUAL_MESSAGES,
    Boxes,
    MakeName,
    claim_some,
    make_boxes,
    numbered_messages,
    payload,
    progress_of,
    publications_to,
    publish_all,
    read_all,
    values,
)
from tests.brokers.subscription_contract import SubscriptionContract


class BrokerContract(SubscriptionContract, GroupOffsetsContract):
    """Tests of every method of the contract."""

    async def test_the_server_reports_kind_id_and_brokers(self, broker: Broker) -> None:
        server = await broker.server_info()
        assert server.kind
        assert server.id
        assert server.brokers >= 1

    async def test_a_box_is_created_once(self, broker: Broker, fresh: MakeName) -> None:
        spec = BoxSpec(fresh("box"), 1)
        assert await broker.ensure(spec) == await broker.ensure(spec)
        assert set(await broker.describe([spec.name, fresh("nowhere")])) == {spec.name}

    async def test_a_box_keeps_its_id_and_a_new_one_of_its_name_has_another(
        self, broker: Broker, fresh: MakeName
    ) -> None:
        for spec in (BoxSpec(fresh("box"), 1), BoxSpec(fresh("box"), 1, is_retry_box=True)):
            first = (await broker.ensure(spec)).id
            assert first
            assert (await broker.ensure(spec)).id == (await broker.describe([spec.name]))[spec.name].id == first
            await broker.delete([spec.name])
            assert (await broker.ensure(spec)).id not in ("", first)

    async def test_a_box_that_must_be_new_is_refused_and_left_alone_if_it_exists(
        self, broker: Broker, fresh: MakeName
    ) -> None:
        for is_retry_box in (False, True):
            name = fresh("box")
            created = await broker.ensure(
                BoxSpec(name, 1, retention_ms=7_777_777, is_retry_box=is_retry_box, must_be_new=True)
            )
            with pytest.raises(BoxAppeared):
                await broker.ensure(BoxSpec(name, 1, retention_ms=60_000, is_retry_box=is_retry_box, must_be_new=True))
            assert (await broker.describe([name]))[name] == created

    async def test_a_box_to_adopt_is_never_created(self, broker: Broker, fresh: MakeName) -> None:
        spec = BoxSpec(fresh("box"), adopt=True)
        with pytest.raises(BoxMissing):
            await broker.ensure(spec)
        assert not await broker.describe([spec.name])

    async def test_a_box_can_be_deleted_twice(self, broker: Broker, fresh: MakeName) -> None:
        name = fresh("box")
        await broker.ensure(BoxSpec(name, 1))
        await broker.delete([name])
        await broker.delete([name, fresh("nowhere")])
        assert not await broker.describe([name])

    async def test_a_missing_box_has_no_window(self, broker: Broker, fresh: MakeName) -> None:
        with pytest.raises(BoxMissing):
            await broker.window(fresh("nowhere"))

    async def test_unusual_messages_are_read_byte_for_byte(self, broker: Broker, fresh: MakeName) -> None:
        name = fresh("box")
        await broker.ensure(BoxSpec(name, 1))
        await publish_all(broker, name, list(UNUSUAL_MESSAGES))
        assert [payload(one.message) for one in await read_all(broker, name)] == list(map(payload, UNUSUAL_MESSAGES))

    async def test_unusual_messages_are_parked_buried_and_replayed_byte_for_byte(
        self, broker: Broker, fresh: MakeName
    ) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.source, list(UNUSUAL_MESSAGES))
        async with broker.subscribe(boxes.subscription()) as subscription:
            for claim in await claim_some(subscription, len(UNUSUAL_MESSAGES)):
                await subscription.settle(claim, Parked(claim.message, now_ms()))
            for claim in await claim_some(subscription, len(UNUSUAL_MESSAGES)):
                await subscription.settle(claim, Buried(boxes.dead, claim.message))
        letters = await read_all(broker, boxes.dead)
        assert {payload(one.message) for one in letters} == set(map(payload, UNUSUAL_MESSAGES))
        assert len(letters) == len(UNUSUAL_MESSAGES)
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            settled = {SettledAs.Replayed: [one.place.offset for one in letters]}
            await writer.commit(CommitBatch(progress_of(letters), publications_to(boxes.target, letters), settled))
        found = [payload(one.message) for one in await read_all(broker, boxes.target)]
        assert found == [payload(one.message) for one in letters]

    async def test_reading_consumes_nothing_and_keeps_order(self, broker: Broker, fresh: MakeName) -> None:
        name = fresh("box")
        await broker.ensure(BoxSpec(name, 1))
        await publish_all(broker, name, numbered_messages(50))
        first, second = await read_all(broker, name), await read_all(broker, name)
        assert [one.message.value for one in first] == [m.value for m in numbered_messages(50)]
        assert [one.place for one in first] == [one.place for one in second]

    async def test_a_frozen_window_does_not_grow(self, broker: Broker, fresh: MakeName) -> None:
        name = fresh("box")
        await broker.ensure(BoxSpec(name, 1))
        await publish_all(broker, name, numbered_messages(5))
        window = await broker.window(name)
        await publish_all(broker, name, numbered_messages(5, 5))
        found = [one async for batch in broker.read(name, window) for one in batch]
        assert [one.message.value for one in found] == [m.value for m in numbered_messages(5)]

    async def test_a_replayed_letter_arrives_once_and_is_settled(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.dead, numbered_messages(10))
        letters = await read_all(broker, boxes.dead)
        chosen = letters[::2]
        offsets = [one.place.offset for one in chosen]
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            assert writer.progress is None
            assert all(writer.is_open(one.place.offset) for one in letters)
            progress = progress_of(letters, scanned=10, matched=5, replayed=5)
            await writer.commit(
                CommitBatch(progress, publications_to(boxes.target, chosen), {SettledAs.Replayed: offsets})
            )
        assert await values(broker, boxes.target) == [one.message.value for one in chosen]
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as again:
            assert again.progress == progress
            assert [again.is_open(one.place.offset) for one in letters] == [False, True] * 5
        await self.check_settled(broker, boxes, offsets)

    async def check_settled(self, broker: Broker, boxes: Boxes, offsets: list[int]) -> None:
        """Check that each offset is settled in the ledger or deleted from the box."""
        settled = (await broker.settled_offsets(boxes.dead, boxes.ledger)).get(0, set[int]())
        present = {one.place.offset for one in await read_all(broker, boxes.dead)}
        assert all(offset in settled or offset not in present for offset in offsets)

    async def test_a_second_writer_fences_the_first(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.dead, numbered_messages(2))
        letters = await read_all(broker, boxes.dead)
        batch = CommitBatch(
            progress_of(letters),
            publications_to(boxes.target, letters),
            {SettledAs.Replayed: [x.place.offset for x in letters]},
        )
        writers = (broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") for _ in range(2))
        async with next(writers) as first, next(writers) as second:
            with pytest.raises(Fenced):
                await first.commit(batch)
            await second.commit(batch)
        assert await values(broker, boxes.target) == [m.value for m in numbered_messages(2)]

    async def test_a_missing_target_settles_nothing(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.dead, numbered_messages(1))
        letters = await read_all(broker, boxes.dead)
        nowhere = fresh("nowhere")
        batch = CommitBatch(
            progress_of(letters), publications_to(nowhere, letters), {SettledAs.Replayed: [letters[0].place.offset]}
        )
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            with pytest.raises(BoxMissing, match=nowhere):
                await writer.commit(batch)
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as again:
            assert again.progress is None
            assert again.is_open(letters[0].place.offset)

    async def test_a_selection_is_stored_until_its_records_are_deleted(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.dead, numbered_messages(6))
        letters = await read_all(broker, boxes.dead)
        chosen = [one.place.offset for one in letters[1:4]]
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "dry") as writer:
            await writer.commit(CommitBatch(progress_of(letters), selected=chosen[:1]))
            await writer.commit(CommitBatch(progress_of(letters), selected=chosen[1:]))
        assert sorted((await broker.selected_offsets(boxes.ledger, "dry"))[0]) == chosen
        counted = await broker.replay_progress(boxes.ledger)
        assert {uid: [progress.next for progress in found] for uid, found in counted.items()} == {
            "dry": [progress_of(letters).next]
        }
        await broker.delete_replay_records(boxes.ledger, "dry")
        assert await broker.replay_progress(boxes.ledger) == {}
        assert not any((await broker.selected_offsets(boxes.ledger, "dry")).values())
        assert not any((await broker.selected_offsets(boxes.ledger, "never")).values())
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "dry") as writer:
            assert writer.progress is None

    async def test_an_archived_letter_can_be_restored_once(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        await publish_all(broker, boxes.dead, numbered_messages(2))
        letters = await read_all(broker, boxes.dead)
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
            await writer.commit(
                CommitBatch(progress_of(letters), settled={SettledAs.Archived: [letters[0].place.offset]})
            )
            assert not writer.is_open(letters[0].place.offset)
        archive = [one async for b in broker.read(boxes.dead, await broker.window(boxes.dead, True), True) for one in b]
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-2", archived=True) as writer:
            archived = [one for one in archive if writer.is_open(one.place.offset)]
            assert [one.message.value for one in archived] == [b"v0"]
            offsets = [one.place.offset for one in archived]
            await writer.commit(
                CommitBatch(
                    progress_of(archived), publications_to(boxes.target, archived), {SettledAs.Replayed: offsets}
                )
            )
        async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-3", archived=True) as writer:
            assert not any(writer.is_open(one.place.offset) for one in archive)
        assert await values(broker, boxes.target) == [b"v0"]

    async def test_the_status_of_a_worker_without_subscription_is_swept_until_it_is_deleted(
        self, broker: Broker, fresh: MakeName
    ) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        monitor = broker.monitor()
        status = WorkerStatus("redrive-0", paused="ErrorBudgetSpent", message="too many", at=now_ms())
        try:
            await broker.report_status(boxes.dead, boxes.ledger, "redrive-0", status)
            assert (await self.stats(monitor, boxes)).couriers == (status,)
            await broker.report_status(boxes.dead, boxes.ledger, "redrive-0", None)
            assert (await self.stats(monitor, boxes)).couriers == ()
        finally:
            await monitor.close()

    async def test_a_sweep_counts_open_letters(self, broker: Broker, fresh: MakeName) -> None:
        boxes = await make_boxes(broker, fresh("q"))
        monitor = broker.monitor()
        try:
            assert (await self.stats(monitor, boxes)).depth == 0
            await publish_all(broker, boxes.dead, numbered_messages(7))
            stats = await self.stats(monitor, boxes, depth=7)
            assert stats.oldest is not None
            letters = await read_all(broker, boxes.dead)
            offsets = [one.place.offset for one in letters[:3]]
            async with broker.partition_writer(boxes.dead, boxes.ledger, 0, "uid-1") as writer:
                await writer.commit(
                    CommitBatch(progress_of(letters, discarded=3), settled={SettledAs.Discarded: offsets})
                )
            stats = await self.stats(monitor, boxes, depth=4)
            assert sum(group.letters for group in stats.groups) == 4
            assert [progress.discarded for progress in stats.progress["uid-1"]] == [3]
            missing = MonitoredBox(fresh("nowhere"), fresh("nowhere"))
            found = await monitor.sweep([missing, boxes.monitored], now_ms())
            assert isinstance(found[missing.dead], BrokerError)
            assert not isinstance(found[boxes.dead], BrokerError)
        finally:
            await monitor.close()
