"""Certificate and configuration of a webhook outside the cluster, limited to one namespace."""

import base64
from pathlib import Path
from typing import Any

import yaml

from tests.bed import binaries, places, tools

HOST = "127.0.0.1"


def create_certificate(folder: Path) -> Path:
    """Create tls.crt and tls.key for the webhook's address, and return their folder."""
    pair = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    alone = ["-addext", f"subjectAltName=IP:{HOST}", "-subj", "/CN=webhook", "-days", "3", "-nodes"]
    tools.run([tools.path("openssl"), "req", "-x509", "-newkey", "rsa:2048", *alone, *pair])
    return folder


def webhook_configuration(name: str, namespace: str, port: str, trusted: Path, **more: Any) -> dict[str, Any]:
    """Return the chart's webhook configuration, changed to one namespace and to a URL."""
    words = ["template", "dlq", str(places.REPOSITORY / "charts" / "dlq-operator"), "--set", "webhook.enabled=true"]
    text = tools.run([str(binaries.path("helm")), *words, "--show-only", "templates/webhook.yaml"], timeout=120)
    whole = next(one for one in yaml.safe_load_all(text) if one and one["kind"] == "ValidatingWebhookConfiguration")
    whole["metadata"] = {"name": name}
    authority = base64.b64encode(trusted.read_bytes()).decode()
    for one in whole["webhooks"]:
        path = one["clientConfig"]["service"]["path"]
        one["clientConfig"] = {"url": f"https://{HOST}:{port}{path}", "caBundle": authority}
        one["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        one |= more
    return whole
