"""What is wrong with a certificate, as the error of a TLS connection tells it; nothing of the certificate is quoted."""

import ssl

DEEP = 10  # errors chained to one another that are looked through
EXPIRED, TOO_YOUNG = 10, 9  # as OpenSSL numbers what a verification objects to
OTHER_NAMES = (62, 63, 64)
_REMEDIES = {
    EXPIRED: "the server's certificate, or its authority's, has expired: renew it",
    TOO_YOUNG: "the server's certificate is not valid yet: look at the clocks of both sides",
    **dict.fromkeys(OTHER_NAMES, "the server's certificate is made out to another name than the one we dial"),
}
_UNTRUSTED = "the server's certificate is signed by nobody we trust: name its authority in caSecretRef"
_OURS = "the server does not accept our certificate"
_ALERTS = {
    "CERTIFICATE_EXPIRED": f"{_OURS}, it has expired: renew it in the Secret of clientSecretRef",
    "CERTIFICATE_REQUIRED": "the server wants a certificate of us: name it in clientSecretRef",
    "CERTIFICATE_REVOKED": f"{_OURS}, it is revoked: renew it in the Secret of clientSecretRef",
    # A Java server says no more than this, also of one that has expired.
    **dict.fromkeys(
        ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE"),
        f"{_OURS}: has the one in the Secret of clientSecretRef expired?",
    ),
    "UNKNOWN_CA": f"{_OURS}, it does not know its authority: look at the Secret of clientSecretRef",
}


def refusal(error: BaseException | None) -> str:
    """A sentence with its remedy when a certificate is the cause of this error; else nothing."""
    for _ in range(DEEP):
        if error is None:
            break
        if sentence := _told(error):
            return sentence
        error = error.__cause__ or error.__context__
    return ""


def _told(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _REMEDIES.get(error.verify_code, _UNTRUSTED)
    if isinstance(error, ssl.SSLError):
        _, _, alert = (getattr(error, "reason", None) or "").partition("_ALERT_")
        return _ALERTS.get(alert, "")
    return ""
