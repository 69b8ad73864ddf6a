"""Explain why a TLS connection failed because of a certificate. Nothing of the certificate is quoted."""

import ssl

MAX_CAUSE_DEPTH = 10
EXPIRED, NOT_YET_VALID = 10, 9  # X509_V_ERR_* numbers of OpenSSL
NAME_MISMATCHES = (62, 63, 64)
_SERVER_PROBLEMS = {
    EXPIRED: "the server's certificate, or its authority's, has expired: renew it",
    NOT_YET_VALID: "the server's certificate is not valid yet: check the clocks of both sides",
    **dict.fromkeys(NAME_MISMATCHES, "the server's certificate is issued for another name than the one we dial"),
}
_UNTRUSTED = "the server's certificate is signed by an authority that is not trusted: name the authority in caSecretRef"
_CLIENT_REFUSED = "the server does not accept our certificate"
_CLIENT_PROBLEMS = {
    "CERTIFICATE_EXPIRED": f"{_CLIENT_REFUSED}, it has expired: renew it in the Secret of clientSecretRef",
    "CERTIFICATE_REQUIRED": "the server requires a client certificate: name it in clientSecretRef",
    "CERTIFICATE_REVOKED": f"{_CLIENT_REFUSED}, it is revoked: renew it in the Secret of clientSecretRef",
    # Java servers send no other alert than these, also for an expired certificate.
    **dict.fromkeys(
        ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE"),
        f"{_CLIENT_REFUSED}: check whether the one in the Secret of clientSecretRef has expired",
    ),
    "UNKNOWN_CA": f"{_CLIENT_REFUSED}, it does not trust its authority: check the Secret of clientSecretRef",
}


def certificate_problem(error: BaseException | None) -> str:
    """Return what is wrong with a certificate and the remedy; empty if a certificate is not the cause."""
    for _ in range(MAX_CAUSE_DEPTH):
        if error is None:
            break
        if problem := _problem_of(error):
            return problem
        error = error.__cause__ or error.__context__
    return ""


def _problem_of(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _SERVER_PROBLEMS.get(error.verify_code, _UNTRUSTED)
    if isinstance(error, ssl.SSLError):
        _, _, alert = (getattr(error, "reason", None) or "").partition("_ALERT_")
        return _CLIENT_PROBLEMS.get(alert, "")
    return ""
