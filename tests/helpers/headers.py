"""Read the envelope that this product wrote into a message."""

from deadletter.core.headers import DETECTION_HEADERS, read_headers
from deadletter.core.letters import Envelope, Message


def read_own_envelope(message: Message) -> Envelope | None:
    """Return the envelope in the message's `dlq-*` headers; None if neither of the detection headers is present."""
    fields = dict(message.headers)
    return None if fields.keys().isdisjoint(DETECTION_HEADERS) else read_headers(fields)
