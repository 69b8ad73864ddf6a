"""Corrupt record batches in the log on a broker's disk, so that no client can decode them."""

import struct
from collections.abc import Callable
from pathlib import Path

from aiokafka.record.util import calc_crc32c

# Positions in a batch: end of its length field, checksum, first byte that the checksum covers, codec.
HEAD, CRC, CHECKED, CODEC = 12, 17, 21, 22
Corruption = Callable[[bytearray], None]


def replace_bytes(old: bytes, new: bytes) -> Corruption:
    def change(batch: bytearray) -> None:
        at = batch.index(old)
        batch[at : at + len(old)] = new

    return change


def wrong_checksum(batch: bytearray) -> None:
    replace_bytes(b"poison", b"p0ison")(batch)


def unknown_codec(batch: bytearray) -> None:
    batch[CODEC] |= 5
    update_checksum(batch)


def wrong_codec(batch: bytearray) -> None:
    batch[CODEC] |= 1  # gzip, although it is not compressed
    update_checksum(batch)


def invalid_header_name(batch: bytearray) -> None:
    replace_bytes(b"header-name", b"\xff\xfeader-name")(batch)
    update_checksum(batch)


def update_checksum(batch: bytearray) -> None:
    struct.pack_into(">I", batch, CRC, calc_crc32c(bytes(batch[CHECKED:])))


def corrupt_batch(log: Path, change: Corruption) -> bytes:
    """Corrupt the batch that holds `poison` in a log file, and return its new content."""
    content, position = bytearray(log.read_bytes()), 0
    while True:
        end = position + HEAD + struct.unpack_from(">i", content, position + 8)[0]
        if b"poison" in content[position:end]:
            batch = content[position:end]
            change(batch)
            with log.open("r+b") as file:
                file.seek(position)
                file.write(batch)
            return bytes(batch)
        position = end


CORRUPTIONS = (wrong_checksum, unknown_codec, wrong_codec, invalid_header_name)
