"""A real operator as a process of its own, with the chart's own rights and no more."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.bed import binaries, places, ports, tools
from tests.bed.control import ApiServer

PATIENCE = 120.0
QUICK = {
    "DLQ_ALLOW_ADDRESSES": "127.0.0.0/8",
    "DLQ_SWEEP_SECONDS": "0.5",
    "DLQ_STATUS_SECONDS": "0.2",
    "DLQ_RETRY_SECONDS": "2",
    "DLQ_SECRETS_SECONDS": "1",
    "DLQ_REJUDGE_SECONDS": "10",
    "DLQ_RELIST_SECONDS": "5",
    "DLQ_LOG_LEVEL": "debug",
}


def until(what: str, ask: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """The first answer that is true."""
    end = time.monotonic() + patience
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < end, f"not in {patience:.0f} s: {what}"
        time.sleep(0.2)


def roles(namespace: str, *values: str, parts: Sequence[str] = ("rbac", "serviceaccount")) -> str:
    """The chart's own ServiceAccount, roles and bindings; or other parts of it."""
    words = ["template", "dlq", str(places.REPOSITORY / "charts" / "dlq-operator"), "--namespace", namespace]
    chosen = [word for value in ("rbac.aggregate=false", *values) for word in ("--set", value)]
    shown = [word for part in parts for word in ("--show-only", f"templates/{part}.yaml")]
    return tools.run([str(binaries.path("helm")), *words, *chosen, *shown], timeout=120)


def rights(server: ApiServer, namespace: str, folder: Path, *values: str) -> Path:
    """A kubeconfig of a ServiceAccount that has the roles of the chart, in this namespace alone."""
    manifests = roles(namespace, f"watchNamespaces={{{namespace}}}", *values)
    server.kubectl("apply", "-f", "-", stdin=manifests)
    return kubeconfig_of(server, manifests, namespace, folder)


def kubeconfig_of(server: ApiServer, manifests: str, namespace: str, folder: Path) -> Path:
    """A kubeconfig of the ServiceAccount among these manifests."""
    account = next(one for one in yaml.safe_load_all(manifests) if one and one["kind"] == "ServiceAccount")
    token = server.kubectl("-n", namespace, "create", "token", account["metadata"]["name"], "--duration=2h").strip()
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    config["contexts"][0]["context"]["user"] = "operator"
    path = folder / f"{namespace}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


class Operator:
    """One running operator."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, **more: str) -> None:
        self.kubeconfig, self.namespace, self.log = kubeconfig, namespace, log
        self.port = ports.free("127.0.0.1")[0]
        self._more = more
        self.process: subprocess.Popen[bytes] | None = None
        self.ending = False

    def start(self) -> "Operator":
        """Start it; it goes on by itself."""
        environment = os.environ | QUICK | self._more
        environment |= {"KUBECONFIG": str(self.kubeconfig), "DLQ_NAMESPACES": self.namespace}
        environment |= {"DLQ_HEALTH_PORT": str(self.port), "PYTHONPATH": str(places.REPOSITORY / "operator")}
        command = [sys.executable, "-m", "deadletter", "operator"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        return self

    def until_ready(self) -> "Operator":
        """Wait until it has listed everything."""
        until("operator ready", lambda: self._ask("/readyz") is not None)
        return self

    def _ask(self, path: str) -> str | None:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return None

    def metrics(self) -> str:
        """What /metrics shows."""
        return until("metrics", lambda: self._ask("/metrics"))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Tell it to end and wait; gives its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def running(kubeconfig: Path, namespace: str, log: Path, **more: str) -> Iterator[Operator]:
    """An operator while the block runs; killed when it does not end by itself."""
    operator = Operator(kubeconfig, namespace, log, **more).start()
    try:
        yield operator
    finally:
        try:
            operator.stop()
        except subprocess.TimeoutExpired:
            operator.stop(signal.SIGKILL)


class Place:
    """A namespace to apply things in and to look at."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """kubectl in this namespace."""
        return self.server.kubectl("-n", self.namespace, *words, stdin=stdin)

    def apply(self, kind: str, name: str, spec: dict[str, Any], **meta: Any) -> None:
        """One of our objects."""
        whole = {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "spec": spec}
        whole["metadata"] = {"name": name, "namespace": self.namespace} | meta
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(whole))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """The object as it is; empty when it is not there."""
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else {}

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        """One condition; empty when it was never set."""
        conditions = self.get(kind, name).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == type_), {})

    def until_condition(self, kind: str, name: str, type_: str, status: str, reason: str = "") -> dict[str, Any]:
        """Wait until the condition says so."""
        seen: dict[str, Any] = {}

        def says() -> bool:
            seen.clear()
            seen.update(self.condition(kind, name, type_))
            return seen.get("status") == status and reason in ("", seen.get("reason"))

        try:
            until(f"{kind} {name}: {type_}={status} {reason}", says)
        except AssertionError as error:
            raise AssertionError(f"{error}; it says {seen}") from None
        return seen

    def kafka(self, bootstrap: str, name: str = "broker") -> None:
        """A BrokerConnection to the Kafka of the bed."""
        defaults = {"partitions": 1, "replicationFactor": 1}
        self.apply("BrokerConnection", name, {"kafka": {"bootstrapServers": [bootstrap], "defaults": defaults}})

    def redis(self, url: str, name: str = "broker") -> None:
        """A BrokerConnection to the Redis of the bed."""
        self.apply("BrokerConnection", name, {"redis": {"url": url}})
