"""A service in a process of its own, so that it can be killed: it records each response before it sends it.

    python -m tests.workers.recording_service PORT FILE [RESPONSE DELAY IN MILLISECONDS]

The body of a request is a number whose last two digits decide the response: 03 is always refused, 05 gets 429 with
Retry-After at its first attempt, x7 fails at its first attempt. A line of the file: number, attempt, key, status.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import uvloop

RETRY_AFTER_S = 6


def status(number: int, attempt: int) -> int:
    """Return the status of the response."""
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


class ServerConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, file: int, delay: float) -> None:
        self._file, self._delay, self._unread = file, delay, b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while b"\r\n\r\n" in self._unread:
            head, _, rest = self._unread.partition(b"\r\n\r\n")
            headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            length = int(headers[b"content-length"])
            if len(rest) < length:
                return
            self._unread = rest[length:]
            self._respond(int(rest[:length]), int(headers[b"dlq-attempt"]), headers[b"dlq-key"].decode())

    def _respond(self, number: int, attempt: int, key: str) -> None:
        code = status(number, attempt)
        os.write(self._file, f"{number} {attempt} {key} {code}\n".encode())
        retry_after = f"Retry-After: {RETRY_AFTER_S}\r\n" if code == 429 else ""
        response = f"HTTP/1.1 {code} X\r\n{retry_after}Content-Length: 0\r\n\r\n".encode()
        if self._delay:
            asyncio.get_running_loop().call_later(self._delay, self._transport.write, response)
        else:
            self._transport.write(response)


async def serve(port: int, path: Path, delay: float) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ServerConnection(file, delay), "127.0.0.1", port, reuse_port=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2]), int([*sys.argv, "0"][3]) / 1000))
