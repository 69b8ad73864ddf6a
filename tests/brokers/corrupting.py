"""Batches of a real log, changed where they lie on the broker's disk so that nobody can decode them."""

import struct
from collections.abc import Callable
from pathlib import Path

from aiokafka.record.util import calc_crc32c

HEAD, CRC, CHECKED, CODEC = 12, 17, 21, 22  # where a batch says its length, its checksum and its codec
Corruption = Callable[[bytearray], None]


def swap(old: bytes, new: bytes) -> Corruption:
    def change(batch: bytearray) -> None:
        at = batch.index(old)
        batch[at : at + len(old)] = new

    return change


def flip(batch: bytearray) -> None:
    swap(b"poison", b"p0ison")(batch)


def unknown_codec(batch: bytearray) -> None:
    batch[CODEC] |= 5
    sign(batch)


def garbled_codec(batch: bytearray) -> None:
    batch[CODEC] |= 1  # gzip, which it is not
    sign(batch)


def no_text(batch: bytearray) -> None:
    swap(b"header-name", b"\xff\xfeader-name")(batch)
    sign(batch)


def sign(batch: bytearray) -> None:
    struct.pack_into(">I", batch, CRC, calc_crc32c(bytes(batch[CHECKED:])))


def corrupt_batch(log: Path, change: Corruption) -> bytes:
    """Change the batch that holds the poison where it lies on the broker's disk; what it is now."""
    content, at = bytearray(log.read_bytes()), 0
    while True:
        end = at + HEAD + struct.unpack_from(">i", content, at + 8)[0]
        if b"poison" in content[at:end]:
            batch = content[at:end]
            change(batch)
            with log.open("r+b") as file:
                file.seek(at)
                file.write(batch)
            return bytes(batch)
        at = end


CORRUPTIONS = (flip, unknown_codec, garbled_codec, no_text)
