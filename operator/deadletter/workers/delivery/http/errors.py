"""The errors of an HTTP request that got no valid response.

- HttpError
    - TargetForbidden: the address guard refuses the address (target fault)
    - TargetUnresolvable: DNS has no address for the host name (target fault)
    - TlsError: the TLS handshake failed (target fault)
        - CertificateRejected: one side does not accept the other's certificate
    - ConnectFailed: the connection was refused, or there is no route
    - ConnectionBroken: the connection was reset or closed too early
    - ResponseTimeout: the response was not complete in time
    - InvalidResponse: the response is not HTTP/1.1, or too large

`kind` is the failure type that `core.failure_categories` classifies; letters keep it. Texts never quote a header,
a body or a credential.
"""


class HttpError(Exception):
    """The request got no valid response. `is_target_fault`: the cause is the target, so every message would meet it."""

    kind = "Network"
    is_target_fault = False


class TargetForbidden(HttpError):
    """The address guard does not allow the address of the target, or the URL is not a plain http(s) URL."""

    kind = "Forbidden"
    is_target_fault = True


class TargetUnresolvable(HttpError):
    """The host name of the target has no address."""

    kind = "Dns"
    is_target_fault = True


class TlsError(HttpError):
    """The TLS handshake failed, or a certificate or Secret for it cannot be read."""

    kind = "Tls"
    is_target_fault = True


class CertificateRejected(TlsError):
    """The certificate of the service, or our client certificate, was not accepted."""


class ConnectFailed(HttpError):
    """No process listens at the address, or there is no route to it."""

    kind = "ConnectionRefused"


class ConnectionBroken(HttpError):
    """The connection ended before the response did."""

    kind = "ConnectionReset"


class ResponseTimeout(HttpError):
    """The connection or the response was not complete in time."""

    kind = "Timeout"


class InvalidResponse(HttpError):
    """The response is not HTTP/1.1 or exceeds a limit."""

    kind = "NetworkProtocol"
