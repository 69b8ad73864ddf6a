"""A courier killed at every step of a delivery: no message lost, no letter twice, redeliveries with the same id."""

import asyncio
import itertools
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from redis.asyncio import Redis

from deadletter.workers.process import cancel_and_wait
from tests.workers.broker_queue import BrokerQueue
from tests.workers.couriers import QUICK, message
from tests.workers.failpoints import STEPS
from tests.workers.http_service import Received, Service, serving, status, until
from tests.workers.worker_processes import Pod

COUNT = 30
TIMES = "2"  # every step is taken at least so often: few are in flight at once, so settlements come in several batches
BAD, ODD, PUT_OFF = status(422), status(409), status(503)
POLICY = {**QUICK, "maxAttempts": 3, "backoff": {"strategy": "Fixed", "initial": "300ms"}}


def answer(one: Received):
    number = int(one.body.split()[1])
    if number % 3 == 0:
        return ODD(one) if number % 2 else BAD(one)
    return PUT_OFF(one) if number % 3 == 1 and one.headers["Dlq-Attempt"] != "3" else status(200)(one)


async def die_and_recover(queue: BrokerQueue, service: Service, folder: Path, kind: str, step: str) -> None:
    """Create a queue, run a courier that dies at this step, then one that finishes."""
    own = BrokerQueue(queue.broker, queue.spec, queue.prefix.replace(".", f"-{step}."))
    await own.create()
    await own.send(*(message(f"{step} {number}", f"k{number}") for number in range(COUNT)))
    routes = [{"match": "error.status == 409", "box": f"{own.prefix}other"}]
    slowly = {"inlineLimit": "0s", "concurrency": 4}
    assignment = own.assignment(service.url, policy=POLICY, delivery=slowly, routes=routes)
    dying = Pod(folder / f"{step}-dying", assignment, "tests.workers.failpoints", kind, step, TIMES)
    await dying.start()
    assert dying.process is not None
    sending = asyncio.ensure_future(send_more(own, step))
    try:
        assert await asyncio.wait_for(dying.process.wait(), 180) == -signal.SIGKILL, dying.log
    finally:
        await cancel_and_wait(sending)
    pod = Pod(folder / step, assignment)
    await pod.start()
    try:
        await own.until_buried(COUNT // 6)
        await own.until_buried(COUNT // 6, "other")
        await until(lambda: accepted(service, step) == {n for n in range(COUNT) if n % 3}, 180)
    finally:
        await pod.end(signal.SIGKILL)
    for box, first in (("dead", 0), ("other", 3)):
        letters = Counter(taken.message.value for taken in await own.buried(box))
        assert letters == Counter(f"{step} {number}".encode() for number in range(first, COUNT, 6)), step


async def send_more(own: BrokerQueue, step: str) -> None:
    """Send good messages one by one: a commit without a letter happens only while no letter is settled."""
    for number in itertools.count(COUNT + 2, 3):
        await asyncio.sleep(0.5)
        await own.send(message(f"{step} {number}", f"k{number}"))


def accepted(service: Service, step: str) -> set[int]:
    """Return the numbers of the first messages that the service accepted."""
    mine = [one for one in service.received if one.body.split()[0] == step.encode()]
    taken = {int(one.body.split()[1]): one for one in mine if answer(one).status == 200}
    return {number for number in taken if number < COUNT}


@pytest.mark.timeout(600)
async def test_a_courier_killed_at_any_step_loses_and_repeats_nothing(queue: BrokerQueue, tmp_path: Path):
    kind = "redis" if queue.spec.is_redis else "kafka"
    async with serving(answer) as service:
        await asyncio.gather(*(die_and_recover(queue, service, tmp_path, kind, step) for step in STEPS[kind]))
    names: dict[bytes, set[str]] = defaultdict(set)
    for one in service.received:
        names[one.body].add(one.id)
    assert {len(found) for found in names.values()} == {1}
    assert len({name for found in names.values() for name in found}) == len(names) >= COUNT * len(STEPS[kind])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("queue", ["redis"], indirect=True)
@pytest.mark.parametrize(("first", "then"), [(503, 200), (503, 422), (422, 200), (422, 409), (422, 503)])
async def test_a_letter_written_before_a_kill_stays_the_only_one_if_the_response_changes(
    queue: BrokerQueue, redis: str, tmp_path: Path, first: int, then: int
):
    await queue.send(*(message(f"order {number}") for number in range(COUNT)))
    routes = [{"match": "error.status == 409", "box": f"{queue.prefix}other"}]
    async with serving(status(first)) as service, Redis.from_url(redis) as client:
        assignment = queue.assignment(service.url, policy=POLICY, delivery={"inlineLimit": "0s"}, routes=routes)
        dying = Pod(tmp_path / "dying", assignment, "tests.workers.failpoints", "redis", "letter-written", TIMES)
        await dying.start()
        assert dying.process is not None
        assert await asyncio.wait_for(dying.process.wait(), 180) == -signal.SIGKILL, dying.log
        service.answer, answered = status(then), len(service.received)
        pod = Pod(tmp_path / "going-on", assignment)
        await pod.start()
        try:
            await until_settled(client, queue)
        finally:
            await pod.end(signal.SIGKILL)
    taken = service.bodies[answered:] if then == 200 else []
    letters = [letter.message.value for box in ("dead", "other") for letter in await queue.buried(box)]
    assert Counter([*taken, *letters]) == Counter(f"order {number}".encode() for number in range(COUNT))


async def until_settled(client: Redis, queue: BrokerQueue) -> None:
    """Wait until every message is claimed and none is held or parked."""
    async with asyncio.timeout(120):
        while True:
            (group,) = await client.xinfo_groups(f"{queue.prefix}orders")
            waiting = await client.hlen(f"{queue.prefix}retry") - 1  # its first field counts
            if not group["lag"] and not group["pending"] and not waiting:
                return
            await asyncio.sleep(0.1)
