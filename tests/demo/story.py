"""The chapters of the demo; each ends when the cluster shows the expected result."""

from collections.abc import Callable
from pathlib import Path

from tests import previous
from tests.bed import image, places
from tests.bed.node import Cluster
from tests.demo import traffic
from tests.demo.stage import MANIFESTS, Stage, bar

SYSTEM = "dlq-system"
OPERATOR = "deploy/dlq-dlq-operator"
LETTERS = ("python", "-m", "deadletter", "letters", "list")
GROUPS = "CAUSE:.status.groups[*].errorType,CATEGORY:.status.groups[*].category,LETTERS:.status.groups[*].letters"
METRICS = f"/api/v1/namespaces/{SYSTEM}/services/dlq-dlq-operator:metrics/proxy/metrics"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
CHART = places.REPOSITORY / "charts" / "dlq-operator"
GOOD, FLAKY, BAD, DURING = 40, 6, 12, 20


def create_namespaces(cluster: Cluster, *names: str) -> None:
    """Create namespaces in which only restricted pods may run."""
    for name in names:
        manifest = cluster.kubectl("create", "namespace", name, "--dry-run=client", "-o", "yaml")
        cluster.kubectl("apply", "-f", "-", stdin=manifest)
        cluster.kubectl("label", "--overwrite", "namespace", name, RESTRICTED)


def install(cluster: Cluster, *arguments: str, chart: Path = CHART) -> None:
    """Install or upgrade the operator with Helm and wait until it is ready."""
    create_namespaces(cluster, SYSTEM)
    cluster.helm(
        "upgrade", "--install", "dlq", str(chart), "--namespace", SYSTEM, "--wait", "--timeout", "240s",
        "--set", "operator.sweepSeconds=2,operator.extraEnv[0].name=DLQ_STATUS_SECONDS",
        "--set-string", "operator.extraEnv[0].value=2", *arguments,
    )  # fmt: skip


def install_previous(cluster: Cluster) -> None:
    """Install the previous release: its chart, and its code in the image that the chart names."""
    cluster.load(image.previous_archive())
    install(cluster, chart=previous.CHART)


def depth(stage: Stage) -> int | None:
    """Return the depth in the status of the queue."""
    return stage.get("dlq/orders").get("status", {}).get("depth")


class Story:
    """One run of the demo on one broker."""

    def __init__(self, stage: Stage, broker: str, address: str, source: str = "orders") -> None:
        self.stage, self.broker, self.address, self.source = stage, broker, address, source
        stage.substitutions = {"ADDRESS": address, "IMAGE": stage.cluster.image, "SOURCE": source}

    def run(self) -> None:
        """Run all chapters in order."""
        chapters: tuple[tuple[str, Callable[[], None]], ...] = (
            ("A shop, a queue and its retry policy", self.set_up),
            ("Orders arrive; some fail at first, some always", self.letters),
            ("Why did they fail, and which alert fires?", self.alert),
            ("The shop goes down: delivery pauses and no order becomes a letter", self.outage),
            ("A preview counts the letters that a replay would send", self.preview),
            ("A replay without a fix: the canary stops it", self.too_early),
            ("A replay with a fix: every letter is sent back once", self.fixed),
        )
        for number, (title, chapter) in enumerate(chapters, 2):
            self.stage.print(f"\n{number}. {title}")
            chapter()

    def set_up(self) -> None:
        """Start the shop, create the queue and wait until it is Ready."""
        create_namespaces(self.stage.cluster, self.stage.namespace)
        self._shop()
        self.send([])
        for manifest in (f"broker-{self.broker}", "queue"):
            self.stage.print(f"    applying tests/demo/manifests/{manifest}.yaml")
            self.stage.apply(manifest)
        self.stage.until("the queue to be Ready", lambda: self._is("dlq/orders", "Ready", "True"))
        self.stage.until("the first sweep", self._is_idle)
        self.stage.show("get", "bkc,rtp")
        self.stage.show("get", "dlq")

    def letters(self) -> None:
        """Orders that fail at first are retried until accepted; those that always fail become letters with a reason."""
        flaky, bad = traffic.orders(FLAKY, 100, flaky=True), traffic.orders(BAD, 200, currency="DOGE")
        self.send(traffic.mixed(traffic.orders(GOOD), flaky, bad))
        self.stage.print(
            f"    sent {GOOD} good orders, {FLAKY} that fail twice, {BAD} in a currency that the shop rejects"
        )
        self.stage.until(f"{BAD} letters", lambda: depth(self.stage) == BAD)
        self.stage.until("the condition DepthHigh", lambda: self._reason("Degraded") == "DepthHigh")
        self.stage.show("get", "dlq")

    def alert(self) -> None:
        """Show the causes, the letters, and the condition behind the alert."""
        self.stage.until("the failure groups", lambda: self._count_grouped() == BAD)
        self.stage.show("get", "dlq/orders", "-o", f"custom-columns={GROUPS}")
        listed = (*LETTERS, "-n", self.stage.namespace, "orders", "--limit=2")
        self.stage.show("-n", SYSTEM, "exec", OPERATOR, "--", *listed)
        self.stage.show("wait", "dlq/orders", "--for=condition=Degraded", "--timeout=60s")
        self.stage.until("the metrics", lambda: self._metric("dlq_letters") == BAD)
        allowed = self._metric("dlq_alert_threshold", 'signal="depth"')
        assert 0 < allowed < BAD
        self.stage.print(f"    DLQDepthHigh fires: dlq_letters {BAD} > dlq_alert_threshold {allowed:.0f}")

    def outage(self) -> None:
        """The circuit opens while the shop is down; then all orders arrive and no letter is added."""
        self._scale(0)
        self.send(traffic.orders(DURING, 300))
        self.stage.print(f"    the shop is down; sent {DURING} more orders")
        self.stage.until("the circuit to open", lambda: self._reason("Degraded") == "CircuitOpen")
        self.stage.show("get", "dlq")
        self._scale(1)
        self.stage.until("the circuit to close", lambda: self._reason("Degraded") != "CircuitOpen")
        self.stage.print("    the shop is back and accepts the waiting orders")
        self.stage.until(f"still {BAD} letters", lambda: depth(self.stage) == BAD)

    def preview(self) -> None:
        """A dry run counts letters and sends nothing."""
        self._replay("preview", "True", "DryRunFinished")
        assert self.stage.get("rply/preview")["status"]["matched"] == BAD

    def too_early(self) -> None:
        """Nothing is fixed, so the letters of the canary fail again and the replay stops."""
        self._replay("too-early", "False", "FailureShareExceeded")
        self.stage.print("    the shop rejected them again, so all other letters stayed in the dead box")
        self.stage.until("the letters to be back", lambda: depth(self.stage) == BAD)
        self.stage.until("the condition DepthHigh", lambda: self._reason("Degraded") == "DepthHigh")
        self.stage.show("get", "dlq")

    def fixed(self) -> None:
        """The replay corrects the currency; the shop accepts all orders and the dead box is empty."""
        self._replay("fixed", "True", "AllReplayed")
        self.stage.until("an empty dead box", lambda: depth(self.stage) == 0)
        self.stage.until("the queue to be as expected", lambda: self._reason("Degraded") == "AsExpected")
        assert self.stage.get("rply/fixed")["status"]["replayed"] == BAD
        self.stage.show("get", "rply")
        self.stage.show("get", "dlq")

    def _replay(self, name: str, status: str, reason: str) -> None:
        self.stage.print(f"    applying tests/demo/manifests/{name}.yaml")
        self.stage.apply(name)
        self.stage.until(f"replay {name} to end", lambda: self._ended(name), done=lambda: self._progress(name))
        self.stage.print(f"    {self._progress(name)}")
        self.stage.show("get", f"rply/{name}")
        found = self.stage.condition(f"rply/{name}", "Succeeded")
        assert (found["status"], found["reason"]) == (status, reason), found

    def _progress(self, name: str) -> str:
        return f"{bar(self.stage.get(f'rply/{name}').get('status', {}).get('replayed', 0), BAD)} letters sent back"

    def _metric(self, name: str, label: str = "") -> float:
        """Return a metric of this queue as the operator exports it."""
        lines = self.stage.cluster.kubectl("get", "--raw", METRICS).splitlines()
        ours = [line for line in lines if line.startswith(f"{name}{{") and f'"{self.stage.namespace}"' in line]
        return next((float(line.rsplit(" ", 1)[1]) for line in ours if label in line), 0.0)

    def _count_grouped(self) -> int:
        return sum(group["letters"] for group in self.stage.get("dlq/orders")["status"].get("groups", []))

    def _is_idle(self) -> bool:
        queues = [self.stage.get(what).get("status", {}).get("queues") for what in ("bkc/broker", "rtp/patient")]
        return queues == [1, 1] and depth(self.stage) == 0 and self._reason("Degraded") == "AsExpected"

    def _ended(self, name: str) -> bool:
        return self.stage.condition(f"rply/{name}", "Succeeded").get("status") in ("True", "False")

    def _is(self, what: str, kind: str, status: str) -> bool:
        return self.stage.condition(what, kind).get("status") == status

    def _reason(self, kind: str) -> str:
        return str(self.stage.condition("dlq/orders", kind).get("reason"))

    def send(self, sent: list[dict[str, object]]) -> None:
        """Send orders for the shop through the broker."""
        traffic.send(self.broker, self.address, self.source, sent)

    def _shop(self) -> None:
        made = self.stage.kubectl(
            "create", "configmap", "shop", f"--from-file={MANIFESTS / 'shop.py'}", "--dry-run=client", "-o", "yaml"
        )
        self.stage.kubectl("apply", "-f", "-", stdin=made)
        self.stage.apply("shop")
        self.stage.kubectl("rollout", "status", "deploy/shop", "--timeout=180s")

    def _scale(self, replicas: int) -> None:
        self.stage.kubectl("scale", "deploy/shop", f"--replicas={replicas}")
        wanted = "" if replicas == 0 else "True"
        path = 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
        pods = lambda: self.stage.kubectl("get", "pods", "-l", "app=shop", "-o", path).strip()  # noqa: E731
        self.stage.until("the shop's pods", lambda: pods() == wanted)
