"""Open the delivery that a queue's API model describes. A new protocol is one more case here."""

from collections.abc import Sequence

from deadletter.api.delivery import HttpDelivery
from deadletter.net.secrets import Secrets
from deadletter.workers.delivery.base import MessageDelivery
from deadletter.workers.delivery.http.delivery import HttpMessageDelivery
from deadletter.workers.delivery.http.resolver import Resolver, resolve_host


def open_delivery(
    spec: HttpDelivery,
    url: str,
    timeout_s: float,
    secrets: Secrets,
    allow: Sequence[str] = (),
    resolver: Resolver = resolve_host,
) -> MessageDelivery:
    """Return a delivery to `url`. It connects at the first attempt; `allow` lists networks it may dial in any case."""
    return HttpMessageDelivery(spec, url, timeout_s, secrets, allow, resolver)
