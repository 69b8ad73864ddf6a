"""Measure what hostile input costs in a process of its own: memory in MiB or time in seconds, printed as one number.

Run as `python -m tests.known_faults.measures <name> [arguments]`.
"""

import asyncio
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20
ALLOW = ("127.0.0.1/32",)


def measure(name: str, *arguments: str | int | Path) -> float:
    """Run one measure in a process of its own and return its result."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join((str(root / "operator"), str(root)))
    command = [sys.executable, "-m", __name__, name, *map(str, arguments)]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, check=True, capture_output=True, text=True, timeout=120
    )
    return float(result.stdout.split()[-1])


def peak_mib() -> float:
    """Return the peak resident memory in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def write_bomb(file: str, size: str) -> float:
    """Write a small record batch that decompresses to `size` MiB; return its own size in MiB."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    zstandard = 4
    batch = DefaultRecordBatchBuilder(2, zstandard, 0, -1, -1, -1, 1 << 31)
    batch.append(0, 0, b"key", bytes(int(size) * MIB), [])
    return Path(file).write_bytes(bytes(batch.build())) / MIB


def read_bomb(file: str) -> float:
    """Return the memory that reading the batch takes."""
    from aiokafka import TopicPartition

    from deadletter.brokers.errors import BrokerError
    from deadletter.brokers.kafka.fetch import select_committed, unpack_messages

    content = Path(file).read_bytes()
    before = peak_mib()
    with suppress(BrokerError):
        batches, _ = select_committed(content, [], 0)
        for _ in unpack_messages(batches, TopicPartition("dead", 0), 0, 10):
            pass
    return peak_mib() - before


def read_frame(kind: str, size: str) -> float:
    """Return the memory that one frame of `size` MiB takes, sent by a broker as its first response."""
    from deadletter.api.broker_connections import BrokerConnectionSpec
    from deadletter.brokers.connect import open_broker

    listening = socket.create_server(("127.0.0.1", 0))
    port, total = listening.getsockname()[1], int(size) * MIB
    threading.Thread(target=_send_frames, args=(listening, kind, total), daemon=True).start()
    connections = {
        "kafka": {"bootstrapServers": [f"127.0.0.1:{port}"]},
        "redis": {"url": f"redis://127.0.0.1:{port}/0"},
    }

    async def probe() -> None:
        spec = BrokerConnectionSpec.model_validate({kind: connections[kind]})
        async with open_broker(spec, lambda *_: b"", ALLOW) as broker:
            with suppress(Exception):
                await asyncio.wait_for(broker.server_info(), 30)

    before = peak_mib()
    asyncio.run(probe())
    return peak_mib() - before


def _send_frames(listening: socket.socket, kind: str, total: int) -> None:
    heads = {"kafka": [struct.pack(">i", total)], "redis": [b"+OK\r\n", b"$%d\r\n" % total]}[kind]
    piece = bytes(MIB)
    while True:
        client = listening.accept()[0]
        with client, suppress(OSError):
            for head in heads:
                client.recv(4_096)
                client.sendall(head)
            for _ in range(total // MIB - 1):
                client.sendall(piece)


def read_kinds(count: str) -> float:
    """Return the memory still used after reading `count` letters of 1 MB, each with an error type of its own."""
    from deadletter.core.dialects.reader import read_letter
    from deadletter.core.letters import Message, Place

    before = peak_mib()
    for number in range(int(count)):
        kind = b"%08d" % number + b"x" * 1_000_000
        value = b"".join(_field(at, text) for at, text in ((1, b"s"), (2, kind), (3, b"m"), (6, b"g")))
        letter = read_letter(Message(None, value, (), 0), Place("dead", 0, number), "pipestream", True)
        assert letter.envelope.failure.type, "the letter is not one of this dialect"
    return peak_mib() - before


def _field(number: int, content: bytes) -> bytes:
    """Return one protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    head = b""
    while number > 127:
        head, number = head + bytes([number & 127 | 128]), number >> 7
    return head + bytes([number])


def read_settlements(count: str) -> float:
    """Return the CPU seconds that `count` settlement records of about 45 bytes each take."""
    from pyroaring import BitMap

    from deadletter.brokers.kafka.monitor_state import QueueState
    from deadletter.brokers.types import MonitoredBox
    from deadletter.core.ledger.records import encode_chunk, settled_key
    from deadletter.core.replay_progress import SettledAs

    bits = BitMap(range(65_536))
    bits.run_optimize()
    keys = [settled_key("dead", 0, SettledAs.Replayed, number) for number in range(int(count))]
    records = [(key, encode_chunk(key, bits)) for key in keys]
    state = QueueState(MonitoredBox("dead", "dead.ledger", None, "Auto", False, None))
    before = time.process_time()
    for at, (key, value) in enumerate(records):
        state.add_ledger_record(_record("dead.ledger", at, key, value))
    return time.process_time() - before


def _record(topic: str, offset: int, key: bytes, value: bytes) -> Any:
    return SimpleNamespace(topic=topic, partition=0, offset=offset, key=key, value=value, headers=(), timestamp=0)


def event_loop_block(queues: str) -> float:
    """Return the longest time that reading /metrics blocks the event loop, divided by the time of rendering.

    Both are CPU times of the loop's thread, so that a busy machine does not change them.
    """
    import aiohttp
    from prometheus_client import generate_latest

    from deadletter import metrics
    from deadletter.controller import health

    for number in range(int(queues)):
        labels = ("shop", f"queue-{number:05}")
        for gauge in (
            metrics.LETTERS,
            metrics.OLDEST_LETTER_TIMESTAMP,
            metrics.OLDEST_LETTER_AGE,
            metrics.PARKED_LETTERS,
            metrics.CIRCUIT_OPEN,
            metrics.QUEUE_READY,
        ):
            gauge.labels(*labels).set(1)
        metrics.set_label_values(metrics.GROUP_LETTERS, labels, {f"{group:08x}": 1.0 for group in range(11)})
    rendering = min(_seconds(generate_latest), _seconds(generate_latest))
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - before)

    async def read() -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        runner = await health.serve(SimpleNamespace(), port)  # type: ignore[arg-type]
        watching = asyncio.create_task(watch())
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
            response.raise_for_status()
            await response.release()
        watching.cancel()
        await runner.cleanup()

    asyncio.run(read())
    return longest / rendering


def _seconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


MEASURES = (write_bomb, read_bomb, read_frame, read_kinds, read_settlements, event_loop_block)

if __name__ == "__main__":
    print({one.__name__: one for one in MEASURES}[sys.argv[1]](*sys.argv[2:]))
