"""Certificates of a control plane: one authority, and a certificate and kubeconfig for each client."""

import base64
import json
from pathlib import Path

from tests.bed import tools

CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "controllers": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "dns": "/CN=system:coredns",
    "node": "/O=system:nodes/CN=system:node:node1",
    "kubelet-client": "/O=system:masters/CN=apiserver-kubelet-client",
}
_CA = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")


def make(directory: Path, server: str, addresses: list[str]) -> None:
    """Write the authority, the certificate of the API server, the service account key and all kubeconfigs."""
    tools.need("openssl")
    directory.mkdir(parents=True, exist_ok=True)
    _key(directory / "ca.key")
    extensions = [word for line in _CA for word in ("-addext", line)]
    _openssl("req", "-x509", "-new", "-key", directory / "ca.key", "-subj", "/CN=bed", "-days", "30",
             *extensions, "-out", directory / "ca.crt")  # fmt: skip
    names = ",".join([f"DNS:{name}" for name in _service_names()] + [f"IP:{address}" for address in addresses])
    _leaf(directory, "apiserver", "/CN=kube-apiserver", f"extendedKeyUsage=serverAuth\nsubjectAltName={names}")
    for name, subject in CLIENTS.items():
        _leaf(directory, name, subject, "extendedKeyUsage=clientAuth")
        _kubeconfig(directory, name, server)
    _openssl("genrsa", "-out", directory / "sa.key", "2048")
    _openssl("rsa", "-in", directory / "sa.key", "-pubout", "-out", directory / "sa.pub")


def _service_names() -> list[str]:
    parts = ["kubernetes", "default", "svc", "cluster", "local"]
    return ["localhost"] + [".".join(parts[:count]) for count in (1, 2, 3, 5)]


def _openssl(*words: str | Path) -> None:
    tools.run([tools.path("openssl"), *words])


def _key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def _leaf(directory: Path, name: str, subject: str, extensions: str) -> None:
    key, request, extras = (directory / f"{name}.{ending}" for ending in ("key", "csr", "ext"))
    _key(key)
    extras.write_text(f"keyUsage=digitalSignature\n{extensions}\n")
    _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
    _openssl("x509", "-req", "-in", request, "-CA", directory / "ca.crt", "-CAkey", directory / "ca.key",
             "-CAcreateserial", "-days", "30", "-out", directory / f"{name}.crt", "-extfile", extras)  # fmt: skip


def _kubeconfig(directory: Path, name: str, server: str) -> None:
    def inlined(file: str) -> str:
        return base64.b64encode((directory / file).read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": inlined("ca.crt")}
    user = {"client-certificate-data": inlined(f"{name}.crt"), "client-key-data": inlined(f"{name}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": name}}],
        "current-context": "bed",
    }
    path = directory / f"{name}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
