"""Run the operator as a process, with exactly the rights that the chart grants."""

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

DEFAULT_TIMEOUT_S = 120.0
SHORT_INTERVALS = {
    "DLQ_ALLOW_ADDRESSES": "127.0.0.0/8",
    "DLQ_SWEEP_SECONDS": "0.5",
    "DLQ_STATUS_SECONDS": "0.2",
    "DLQ_RETRY_SECONDS": "2",
    "DLQ_SECRETS_SECONDS": "1",
    "DLQ_REJUDGE_SECONDS": "10",
    "DLQ_RELIST_SECONDS": "5",
    "DLQ_LOG_LEVEL": "debug",
}


def wait_until(what: str, condition: Callable[[], Any], timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
    """Poll until the condition returns something true, and return it."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"not in {timeout_s:.0f} s: {what}"
        time.sleep(0.2)


def render_chart(namespace: str, *values: str, templates: Sequence[str] = ("rbac", "serviceaccount")) -> str:
    """Render templates of the chart; by default its ServiceAccount, roles and bindings."""
    words = ["template", "dlq", str(places.REPOSITORY / "charts" / "dlq-operator"), "--namespace", namespace]
    chosen = [word for value in ("rbac.aggregate=false", *values) for word in ("--set", value)]
    shown = [word for part in templates for word in ("--show-only", f"templates/{part}.yaml")]
    return tools.run([str(binaries.path("helm")), *words, *chosen, *shown], timeout=120)


def create_kubeconfig(server: ApiServer, namespace: str, folder: Path, *values: str) -> Path:
    """Apply the chart's roles for this namespace only, and return a kubeconfig of its ServiceAccount."""
    manifests = render_chart(namespace, f"watchNamespaces={{{namespace}}}", *values)
    server.kubectl("apply", "-f", "-", stdin=manifests)
    return kubeconfig_of_account(server, manifests, namespace, folder)


def kubeconfig_of_account(server: ApiServer, manifests: str, namespace: str, folder: Path) -> Path:
    """Return a kubeconfig of the ServiceAccount among these manifests."""
    account = next(one for one in yaml.safe_load_all(manifests) if one and one["kind"] == "ServiceAccount")
    token = server.kubectl("-n", namespace, "create", "token", account["metadata"]["name"], "--duration=2h").strip()
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    config["contexts"][0]["context"]["user"] = "operator"
    path = folder / f"{namespace}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


class OperatorProcess:
    """One operator process."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, **more: str) -> None:
        self.kubeconfig, self.namespace, self.log = kubeconfig, namespace, log
        self.port = ports.free("127.0.0.1")[0]
        self._settings = more
        self.process: subprocess.Popen[bytes] | None = None
        self.ending = False

    def start(self) -> "OperatorProcess":
        """Start the process and return at once."""
        environment = os.environ | SHORT_INTERVALS | self._settings
        environment |= {"KUBECONFIG": str(self.kubeconfig), "DLQ_NAMESPACES": self.namespace}
        environment |= {"DLQ_HEALTH_PORT": str(self.port), "PYTHONPATH": str(places.REPOSITORY / "operator")}
        command = [sys.executable, "-m", "deadletter", "operator"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        return self

    def wait_until_ready(self) -> "OperatorProcess":
        """Wait until its informers have synced."""
        wait_until("operator ready", lambda: self._get("/readyz") is not None)
        return self

    def _get(self, path: str) -> str | None:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return None

    def metrics(self) -> str:
        """Return the text of /metrics."""
        return wait_until("metrics", lambda: self._get("/metrics"))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def running_operator(kubeconfig: Path, namespace: str, log: Path, **more: str) -> Iterator[OperatorProcess]:
    """Run an operator during the block; it is killed if it does not stop."""
    operator = OperatorProcess(kubeconfig, namespace, log, **more).start()
    try:
        yield operator
    finally:
        try:
            operator.stop()
        except subprocess.TimeoutExpired:
            operator.stop(signal.SIGKILL)


class KubeNamespace:
    """A namespace on the API server, to apply objects in and to read them."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl in this namespace."""
        return self.server.kubectl("-n", self.namespace, *words, stdin=stdin)

    def apply(self, kind: str, name: str, spec: dict[str, Any], **meta: Any) -> None:
        """Apply one of our objects."""
        whole = {"apiVersion": "deadletter.dev/v1alpha1", "kind": kind, "spec": spec}
        whole["metadata"] = {"name": name, "namespace": self.namespace} | meta
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(whole))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return the object, or an empty dict if it does not exist."""
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else {}

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        """Return a condition, or an empty dict if it is not set."""
        conditions = self.get(kind, name).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == type_), {})

    def wait_for_condition(self, kind: str, name: str, type_: str, status: str, reason: str = "") -> dict[str, Any]:
        """Wait until the condition has this status (and reason), and return it."""
        seen: dict[str, Any] = {}

        def has_status() -> bool:
            seen.clear()
            seen.update(self.condition(kind, name, type_))
            return seen.get("status") == status and reason in ("", seen.get("reason"))

        try:
            wait_until(f"{kind} {name}: {type_}={status} {reason}", has_status)
        except AssertionError as error:
            raise AssertionError(f"{error}; the condition is {seen}") from None
        return seen

    def kafka(self, bootstrap: str, name: str = "broker") -> None:
        """Apply a BrokerConnection to the Kafka of the bed."""
        defaults = {"partitions": 1, "replicationFactor": 1}
        self.apply("BrokerConnection", name, {"kafka": {"bootstrapServers": [bootstrap], "defaults": defaults}})

    def redis(self, url: str, name: str = "broker") -> None:
        """Apply a BrokerConnection to the Redis of the bed."""
        self.apply("BrokerConnection", name, {"redis": {"url": url}})
