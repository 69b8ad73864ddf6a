"""HTTP client of the API server, because kubectl takes a second for each manifest."""

import base64
import json
import ssl
import tempfile
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from deadletter.api.custom_resource import API_VERSION
from tools.crds import KINDS

PLURALS = {kind.kind: kind.plural for kind in KINDS}


class Server:
    """A connection that reconnects if the server closed it; `warnings` are those of the last response."""

    def __init__(self, kubeconfig):
        config = yaml.safe_load(Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"]).netloc
        self._context = ssl.create_default_context(cadata=_text(cluster, "certificate-authority").decode())
        with tempfile.NamedTemporaryFile(suffix=".pem") as pair:
            pair.write(_text(user, "client-certificate") + b"\n" + _text(user, "client-key"))
            pair.flush()
            self._context.load_cert_chain(pair.name)
        self._connection = None
        self.warnings = []

    def request(self, method, path, body=None, kind="application/json"):
        """Return status and parsed response; retry once if a kept connection is closed."""
        for _ in range(2):
            try:
                return self._send(method, path, body, kind)
            except (HTTPException, OSError):
                self.close()
        return self._send(method, path, body, kind)

    def _send(self, method, path, body, kind):
        if self._connection is None:
            self._connection = HTTPSConnection(self._address, context=self._context, timeout=120)
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": kind, "Accept": "application/json"})
        response = self._connection.getresponse()
        self.warnings = [text.split('"', 1)[1].rstrip('"') for text in response.headers.get_all("Warning") or ()]
        return response.status, json.loads(response.read())

    def close(self):
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def write(self, method, namespace, manifest, dry_run=True, strict=True):
        """POST or PUT a manifest; return the status, and the error message or the object."""
        plural, name = PLURALS[manifest["kind"]], manifest["metadata"]["name"]
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/{plural}" + (f"/{name}" if method == "PUT" else "")
        query = f"?fieldValidation={'Strict' if strict else 'Ignore'}" + ("&dryRun=All" if dry_run else "")
        status, response = self.request(method, path + query, manifest)
        return status, response.get("message", "") if status >= 300 else response


def _text(part, name):
    if f"{name}-data" in part:
        return base64.b64decode(part[f"{name}-data"])
    return Path(part[name]).read_bytes()


def manifest(kind, spec, name="sample"):
    """Return a whole object."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
