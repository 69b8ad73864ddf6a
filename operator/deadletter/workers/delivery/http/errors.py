"""What can go wrong between us and a service.

- HttpError
    - TargetForbidden: the address guard refuses it; the queue's fault
    - TargetUnresolvable: no address for the name; the queue's fault
    - TlsFault: the handshake; the queue's fault
        - CertificateRefused: a certificate is not accepted
    - Unreachable: refused, no route
    - Broken: reset, closed too early
    - TimedOut: no whole answer in time
    - BadAnswer: not HTTP/1.1, or without bounds

`kind` is the word `core.failures` knows it by. Texts name no header, body or credential.
"""


class HttpError(Exception):
    """No answer. `is_of_queue`: it says nothing about the message, every other one would meet it too."""

    kind = "Network"
    is_of_queue = False


class TargetForbidden(HttpError):
    """The address guard refuses the target."""

    kind = "Forbidden"
    is_of_queue = True


class TargetUnresolvable(HttpError):
    """The target's name has no address."""

    kind = "Dns"
    is_of_queue = True


class TlsFault(HttpError):
    """There is no TLS with it."""

    kind = "Tls"
    is_of_queue = True


class CertificateRefused(TlsFault):
    """A certificate, the service's or ours, is not accepted."""


class Unreachable(HttpError):
    """Nobody listens there."""

    kind = "ConnectionRefused"


class Broken(HttpError):
    """The connection ended before the answer did."""

    kind = "ConnectionReset"


class TimedOut(HttpError):
    """The answer was not whole in time."""

    kind = "Timeout"


class BadAnswer(HttpError):
    """What came back is not an HTTP/1.1 answer within bounds."""

    kind = "NetworkProtocol"
