"""Measure deliveries per second of the courier on Kafka and Redis, compared with an aiohttp loop without a broker.

The service is nginx that answers 200 at once. Lines: rate compared with the loop (on asyncio's event loop, and on the
one that our pods use), CPU per delivery, added latency, the cost of failing messages for others, and what 10,000
parked letters cost (`bench.parked_letters`).

    python -m bench.courier [--messages 20000] [--runs 3]
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
import uvloop

from bench.lines import bound, line, progress, versus
from bench.peers import full_kafka
from deadletter.api.broker_connections import BrokerConnectionSpec
from deadletter.api.worker_config import CourierAssignment
from deadletter.brokers.connect import open_broker
from deadletter.brokers.contract import Broker
from deadletter.brokers.types import Publication
from deadletter.core.box_types import BoxSpec
from deadletter.core.letters import Message, Place
from deadletter.workers.courier.courier import Courier
from deadletter.workers.courier.main import delivery_for, subscription_spec
from deadletter.workers.process import tune_gc
from tests.bed import beds

BODY = os.urandom(512).hex().encode()
IN_FLIGHT = 64
ANYWHERE = ("0.0.0.0/0", "::/0")
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; keepalive_requests 100000000; underscores_in_headers on;
  server {{
    listen 127.0.0.1:{port};
    location / {{ return 200; }}
    location /some {{ if ($http_dlq_key ~ "^bad") {{ return 422; }} return 200; }}
    location /later {{ add_header Retry-After 3600 always; return 429; }}
  }}
}}
"""


@contextmanager
def nginx() -> Iterator[int]:
    """Run a service that answers at once; yields its port."""
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        sys.exit("nginx is missing; install it: apt-get install nginx-light")
    port = 20_000 + os.getpid() % 10_000
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "nginx.conf")
        config.write_text(NGINX.format(folder=folder, port=port))
        process = subprocess.Popen([binary, "-c", str(config), "-p", folder], stderr=subprocess.DEVNULL)
        try:
            time.sleep(0.5)
            yield port
        finally:
            process.terminate()
            process.wait()


def no_secret(name: str, key: str) -> bytes:
    """Raise KeyError: no Secret is used here."""
    raise KeyError(f"{name}/{key}")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def bare_loop(url: str, count: int) -> tuple[float, float, float]:
    """Return deliveries per second, CPU seconds per delivery and 99th percentile of an aiohttp loop."""
    left, seconds = iter(range(count)), []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:

        async def post() -> None:
            for _ in left:
                began_one = time.perf_counter()
                async with session.post(url, data=BODY) as answer:
                    await answer.read()
                seconds.append(time.perf_counter() - began_one)

        began, used = time.perf_counter(), cpu_seconds()
        await asyncio.gather(*(post() for _ in range(IN_FLIGHT)))
        return count / (time.perf_counter() - began), (cpu_seconds() - used) / count, quantiles(seconds, n=100)[98]


@asynccontextmanager
async def queue(spec: BrokerConnectionSpec, count: int, bad: int) -> AsyncIterator[tuple[Broker, str]]:
    """Create a source with messages of 1 KiB; the service refuses every `bad`-th one."""
    tag = f"bench-{uuid.uuid4().hex[:8]}"
    prefix = f"{{{tag}}}." if spec.is_redis else f"{tag}."
    partitions = None if spec.is_redis else 4
    async with open_broker(spec, no_secret, allow=ANYWHERE) as broker:
        for name in ("orders", "dead"):
            await broker.ensure(BoxSpec(prefix + name, partitions, 1))
        await broker.ensure(BoxSpec(prefix + "retry", partitions, 1, retention_ms=-1, is_retry_box=True))
        for first in range(0, count, 5000):
            await broker.publish([_publication(prefix, n, bad) for n in range(first, min(first + 5000, count))])
        yield broker, prefix


def _publication(prefix: str, number: int, bad: int) -> Publication:
    name = "bad" if bad and number % bad == 0 else "good"
    message = Message(f"{name}-{number}".encode(), BODY, (), time.time_ns() // 1_000_000)
    return Publication(f"{prefix}orders", message, Place("bench", 0, uuid.uuid4().int >> 70))


def assignment(url: str, prefix: str, spec: BrokerConnectionSpec, **more: Any) -> CourierAssignment:
    """Return the assignment of the courier."""
    boxes = {"source": f"{prefix}orders", "dead": f"{prefix}dead", "retry": f"{prefix}retry"}
    return CourierAssignment.model_validate(
        {
            "namespace": "bench",
            "queue": "bench",
            "uid": "bench",
            "generation": 1,
            "broker": spec.to_wire(),
            "boxes": {**boxes, "ledger": f"{prefix}dead.ledger"},
            "group": prefix.strip("{}."),
            "start_from": "Earliest",
            "delivery": {"http": {"url": url}, "concurrency": IN_FLIGHT},
            "url": url,
            "allow": ANYWHERE,
            **more,
        }
    )


class TimedDelivery:
    """A delivery that records the duration of each attempt."""

    def __init__(self, assignment: CourierAssignment) -> None:
        self._delivery = delivery_for(assignment, no_secret)
        self.seconds: list[float] = []
        self.first = 0.0

    async def attempt(self, message, metadata):
        began = time.perf_counter()
        self.first = self.first or began
        outcome = await self._delivery.attempt(message, metadata)
        self.seconds.append(time.perf_counter() - began)
        return outcome

    async def close(self) -> None:
        await self._delivery.close()


async def courier(url: str, spec: BrokerConnectionSpec, count: int, bad: int = 0) -> tuple[float, float, float]:
    """Return deliveries per second, CPU seconds per delivery and 99th percentile of the courier."""
    async with queue(spec, count, bad) as (broker, prefix):
        task = assignment(url, prefix, spec)
        delivery, stop = TimedDelivery(task), asyncio.Event()
        async with broker.subscribe(subscription_spec(task, "bench")) as subscription:
            used = cpu_seconds()
            work = asyncio.ensure_future(Courier(task, subscription, delivery).run(stop))
            while len(delivery.seconds) < count:
                await asyncio.sleep(0.02)
            took, spent = time.perf_counter() - delivery.first, cpu_seconds() - used
            stop.set()
            await work
        await delivery.close()
        return count / took, spent / count, quantiles(delivery.seconds, n=100)[98]


def run(work):
    """Run a coroutine with the event loop and settings of our pods."""
    tune_gc()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def compare(name: str, spec: BrokerConnectionSpec, url: str, count: int, runs: int) -> None:
    """Measure the courier and the loop in turn."""
    ours, bare, quick = [], [], []
    for turn in range(runs):
        progress(f"{name}: round {turn + 1} of {runs}")
        bare.append(asyncio.run(bare_loop(url, count)))
        quick.append(run(bare_loop(url, count)))
        ours.append(run(courier(url, spec, count)))
    rate, used, p99 = (median(one[part] for one in ours) for part in range(3))
    versus(f"courier-{name}", "deliveries/s", rate, "aiohttp", median(one[0] for one in bare), 0.9)
    versus(f"courier-{name}-uvloop", "deliveries/s", rate, "aiohttp-on-uvloop", median(one[0] for one in quick), 0.9)
    line(f"courier-{name}-cpu", "us", used * 1e6, "aiohttp", median(one[1] for one in bare) * 1e6, lower_is_better=True)
    peer = median(one[2] for one in quick)
    line(f"courier-{name}-p99", "ms", p99 * 1e3, "aiohttp-on-uvloop", peer * 1e3, 0.9, lower_is_better=True)


def failing(name: str, spec: BrokerConnectionSpec, url: str, count: int, runs: int) -> None:
    """Check that one failing message in a hundred costs the others less than 5 %."""
    plain: list[float] = []
    mixed: list[float] = []
    for turn in range(2 * runs):
        progress(f"{name} with 1 % failing: round {turn + 1} of {2 * runs}")
        both = [(plain, 0), (mixed, 100)]
        for rates, bad in both if turn % 2 else reversed(both):  # neither of them always goes first
            rates.append(run(courier(url + "some", spec, 5 * count, bad))[0])
    versus(f"courier-{name}-failing", "deliveries/s", median(mixed), "none-failing", median(plain), 0.95)


def parked(name: str, spec: BrokerConnectionSpec, url: str) -> None:
    """Measure 10,000 letters that wait for an hour, in a process of its own."""
    progress(f"{name}: parked letters")
    command = [
        sys.executable,
        "-m",
        "bench.parked_letters",
        spec.model_dump_json(by_alias=True, exclude_none=True),
        url,
    ]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    bound(f"courier-{name}-parked-memory", "MiB", result["mib"], 100.0)
    bound(f"courier-{name}-parked-requests", "requests/s", result["requests"], 10.0)


def main() -> None:
    """Measure all lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    bed = beds.create()
    try:
        kafka = BrokerConnectionSpec.model_validate({"kafka": {"bootstrapServers": [full_kafka(bed)]}})
        redis = BrokerConnectionSpec.model_validate({"redis": {"url": bed.redis()}})
        with nginx() as port:
            url = f"http://127.0.0.1:{port}/"
            for name, spec in (("kafka", kafka), ("redis", redis)):
                compare(name, spec, url, options.messages, options.runs)
                failing(name, spec, url, options.messages, options.runs)
                parked(name, spec, url)
    finally:
        bed.down()


if __name__ == "__main__":
    main()
