"""A service as a process of its own, so that it can be killed: it writes down what it answers before it answers.

    python -m tests.workers.recording_service PORT FILE [MILLISECONDS UNTIL IT ANSWERS]

The body of a request is a number, and its last two digits say what becomes of it: 03 is refused for ever, 05 asks for
patience at its first attempt, x7 fails at its first attempt. A line of the file: number, attempt, key, status.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import uvloop

PATIENCE_S = 6


def status(number: int, attempt: int) -> int:
    """What the shop answers."""
    if is_bad(number):
        return 422
    if is_put_off(number):
        return 429 if attempt == 1 else 200
    return 503 if is_flaky(number) and attempt == 1 else 200


def is_bad(number: int) -> bool:
    return number % 100 == 3


def is_put_off(number: int) -> bool:
    return number % 100 == 5


def is_flaky(number: int) -> bool:
    return number % 10 == 7


class Till(asyncio.Protocol):
    """One connection."""

    def __init__(self, book: int, delay: float) -> None:
        self._book, self._delay, self._rest = book, delay, b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while b"\r\n\r\n" in self._rest:
            head, _, rest = self._rest.partition(b"\r\n\r\n")
            named = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            length = int(named[b"content-length"])
            if len(rest) < length:
                return
            self._rest = rest[length:]
            self._serve(int(rest[:length]), int(named[b"dlq-attempt"]), named[b"dlq-key"].decode())

    def _serve(self, number: int, attempt: int, key: str) -> None:
        code = status(number, attempt)
        os.write(self._book, f"{number} {attempt} {key} {code}\n".encode())
        later = f"Retry-After: {PATIENCE_S}\r\n" if code == 429 else ""
        answer = f"HTTP/1.1 {code} X\r\n{later}Content-Length: 0\r\n\r\n".encode()
        if self._delay:
            asyncio.get_running_loop().call_later(self._delay, self._transport.write, answer)
        else:
            self._transport.write(answer)


async def serve(port: int, file: Path, delay: float) -> None:
    book = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Till(book, delay), "127.0.0.1", port, reuse_port=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2]), int([*sys.argv, "0"][3]) / 1000))
