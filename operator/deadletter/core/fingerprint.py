"""Fingerprints: letters that died of the same cause share one.

The rule: error type, the message's first 512 characters with quoted parts, addresses and every word that holds a
digit (numbers, ids, hex, times) taken out, and the top stack frame without its line number. Eight hex digits of that.
"""

import re
from functools import lru_cache
from hashlib import blake2b

from deadletter.core.letters import Failure

_MESSAGE_LIMIT = 512
_VARYING = re.compile(
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
    """Eight hex digits that stay the same across ids, numbers, times and line numbers."""
    message = normalise_message(failure.message[:_MESSAGE_LIMIT].encode("utf-8", "replace"))
    return _fingerprint(failure.type, message, failure.stack)


def normalise_message(message: bytes) -> bytes:
    """As much of a failure's message as a fingerprint is made of; which digits are in it changes nothing in the end.

    So messages that differ in digits alone are looked at once.
    """
    return message[: 4 * _MESSAGE_LIMIT].translate(_DIGITS_TO_ZERO)


@lru_cache(maxsize=2_048)
def _fingerprint(kind: str, message: bytes, stack: str) -> str:
    cause = "\0".join((kind, " ".join(_VARYING.sub("#", message.decode()).split()), top_frame(stack)))
    return blake2b(cause.encode("utf-8", "replace"), digest_size=4).hexdigest()


def top_frame(stack: str) -> str:
    """The frame where it was raised: the first `at ...` (Java, .NET, JavaScript), the last `File ...` (Python)."""
    if not stack:
        return ""
    if frame := _JAVA_FRAME.search(stack):
        return _DIGITS.sub("#", frame[1])
    if start := stack.rfind('File "') + 1:
        line = stack.rfind("\n", 0, start) + 1
        if frame := _PYTHON_FRAME.match(stack, line):
            return f"{_DIGITS.sub('#', frame[1])} {frame[2]}"
    return ""
