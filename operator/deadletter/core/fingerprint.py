"""Compute the fingerprint of a failure; letters that failed for the same cause share it.

It is made of the error type, the first 512 characters of the message without quoted parts, addresses and words that
contain a digit (numbers, ids, hex, times), and the top stack frame without its line number.
"""

import re
from functools import lru_cache
from hashlib import blake2b

from deadletter.core.letters import Failure

_MAX_MESSAGE_CHARS = 512
_VARIABLE_PARTS = re.compile(
    r"""(?<!\w)"[^"\n]*"|(?<!\w)'[^'\n]*'|`[^`\n]*`"""  # quoted parts
    r"""|(?<![\w.+-])[\w.+-]++@[\w.-]+"""  # mail addresses
    r"""|(?<!\w)https?://\S+"""  # URLs
    r"""|(?<!\w)[a-fA-F]{8,}(?!\w)"""  # hex without a digit
    r"""|(?<![A-Za-z_.:/+-])[A-Za-z_.:/+-]*+[0-9][\w.:/+-]*"""  # any word with a digit
)
_JAVA_FRAME = re.compile(r"^\s*at\s+([^\s(]+)", re.MULTILINE)
_PYTHON_FRAME = re.compile(r'^\s*File "([^"\n]*)", line [0-9]+, in (\S+)', re.MULTILINE)
_DIGITS = re.compile(r"[0-9]+")
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")


def fingerprint(failure: Failure) -> str:
    """Return eight hex digits that do not depend on ids, numbers, times and line numbers."""
    message = normalise_message(failure.message[:_MAX_MESSAGE_CHARS].encode("utf-8", "replace"))
    return _fingerprint(failure.type, message, failure.stack)


def normalise_message(message: bytes) -> bytes:
    """Return the part of a failure's message that its fingerprint depends on, with every digit replaced by zero.

    The fingerprint drops words with digits anyway; messages that differ only in digits thus share one cache entry.
    """
    return message[: 4 * _MAX_MESSAGE_CHARS].translate(_DIGITS_TO_ZERO)


@lru_cache(maxsize=2_048)
def _fingerprint(error_type: str, message: bytes, stack: str) -> str:
    cause = "\0".join((error_type, " ".join(_VARIABLE_PARTS.sub("#", message.decode()).split()), top_frame(stack)))
    return blake2b(cause.encode("utf-8", "replace"), digest_size=4).hexdigest()


def top_frame(stack: str) -> str:
    """Return the frame that raised: the first `at ...` (Java, .NET, JavaScript) or the last `File ...` (Python)."""
    if not stack:
        return ""
    if frame := _JAVA_FRAME.search(stack):
        return _DIGITS.sub("#", frame[1])
    if start := stack.rfind('File "') + 1:
        line = stack.rfind("\n", 0, start) + 1
        if frame := _PYTHON_FRAME.match(stack, line):
            return f"{_DIGITS.sub('#', frame[1])} {frame[2]}"
    return ""
