"""The story in chapters; each ends when the cluster shows what it tells."""

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


def namespaces(cluster: Cluster, *names: str) -> None:
    """Namespaces in which only restricted pods may run."""
    for name in names:
        manifest = cluster.kubectl("create", "namespace", name, "--dry-run=client", "-o", "yaml")
        cluster.kubectl("apply", "-f", "-", stdin=manifest)
        cluster.kubectl("label", "--overwrite", "namespace", name, RESTRICTED)


def install(cluster: Cluster, *words: str, chart: Path = CHART) -> None:
    """Install or upgrade the operator with Helm and wait until it is ready."""
    namespaces(cluster, SYSTEM)
    cluster.helm(
        "upgrade", "--install", "dlq", str(chart), "--namespace", SYSTEM, "--wait", "--timeout", "240s",
        "--set", "operator.sweepSeconds=2,operator.extraEnv[0].name=DLQ_STATUS_SECONDS",
        "--set-string", "operator.extraEnv[0].value=2", *words,
    )  # fmt: skip


def install_previous(cluster: Cluster) -> None:
    """Install the release before this one: its own chart, and its own code in the image that the chart names."""
    cluster.load(image.previous_archive())
    install(cluster, chart=previous.CHART)


def depth(stage: Stage) -> int | None:
    """The depth of the queue, as its status tells."""
    return stage.get("dlq/orders").get("status", {}).get("depth")


class Story:
    """One telling, for one broker."""

    def __init__(self, stage: Stage, broker: str, address: str, source: str = "orders") -> None:
        self.stage, self.broker, self.address, self.source = stage, broker, address, source
        stage.words = {"ADDRESS": address, "IMAGE": stage.cluster.image, "SOURCE": source}

    def tell(self) -> None:
        """All chapters, in order."""
        chapters: tuple[tuple[str, Callable[[], None]], ...] = (
            ("A shop, a queue and its retry policy", self.set_up),
            ("Orders arrive; some are flaky, some are bad", self.letters),
            ("Why did they die, and who is told?", self.alert),
            ("The shop goes down: delivery pauses, nothing is drained", self.outage),
            ("A preview: what would a replay take?", self.preview),
            ("A replay too early: the canary stops it", self.too_early),
            ("The mended replay: every letter goes back, once", self.mended),
        )
        for number, (title, chapter) in enumerate(chapters, 2):
            self.stage.say(f"\n{number}. {title}")
            chapter()

    def set_up(self) -> None:
        """The shop answers and the queue is Ready with a courier."""
        namespaces(self.stage.cluster, self.stage.namespace)
        self._shop()
        self.send([])
        for manifest in (f"broker-{self.broker}", "queue"):
            self.stage.say(f"    applying tests/demo/manifests/{manifest}.yaml")
            self.stage.apply(manifest)
        self.stage.until("the queue to be Ready", lambda: self._is("dlq/orders", "Ready", "True"))
        self.stage.until("the first reading", self._is_calm)
        self.stage.show("get", "bkc,rtp")
        self.stage.show("get", "dlq")

    def letters(self) -> None:
        """Flaky orders are retried until taken; bad ones become letters with a reason."""
        flaky, bad = traffic.orders(FLAKY, 100, flaky=True), traffic.orders(BAD, 200, currency="DOGE")
        self.send(traffic.mixed(traffic.orders(GOOD), flaky, bad))
        self.stage.say(
            f"    sent {GOOD} good orders, {FLAKY} that the shop stumbles over, {BAD} in a currency it refuses"
        )
        self.stage.until(f"{BAD} letters", lambda: depth(self.stage) == BAD)
        self.stage.until("the depth to be called high", lambda: self._reason("Degraded") == "DepthHigh")
        self.stage.show("get", "dlq")

    def alert(self) -> None:
        """The causes, the letters themselves, and the condition that an alert looks at."""
        self.stage.until("the groups", lambda: self._grouped() == BAD)
        self.stage.show("get", "dlq/orders", "-o", f"custom-columns={GROUPS}")
        listed = (*LETTERS, "-n", self.stage.namespace, "orders", "--limit=2")
        self.stage.show("-n", SYSTEM, "exec", OPERATOR, "--", *listed)
        self.stage.show("wait", "dlq/orders", "--for=condition=Degraded", "--timeout=60s")
        self.stage.until("the metrics", lambda: self._metric("dlq_letters") == BAD)
        allowed = self._metric("dlq_alert_threshold", 'signal="depth"')
        assert 0 < allowed < BAD
        self.stage.say(f"    DLQDepthHigh fires: dlq_letters {BAD} > dlq_alert_threshold {allowed:.0f}")

    def outage(self) -> None:
        """With the shop gone the circuit opens; when it is back all orders arrive and no letter was added."""
        self._scale(0)
        self.send(traffic.orders(DURING, 300))
        self.stage.say(f"    the shop is gone; sent {DURING} more orders")
        self.stage.until("the circuit to open", lambda: self._reason("Degraded") == "CircuitOpen")
        self.stage.show("get", "dlq")
        self._scale(1)
        self.stage.until("the circuit to close", lambda: self._reason("Degraded") != "CircuitOpen")
        self.stage.say("    the shop is back and takes what had waited")
        self.stage.until(f"still {BAD} letters", lambda: depth(self.stage) == BAD)

    def preview(self) -> None:
        """A dry run counts what would be taken and sends nothing."""
        self._replay("preview", "True", "DryRunFinished")
        assert self.stage.get("rply/preview")["status"]["matched"] == BAD

    def too_early(self) -> None:
        """Nothing was mended, so the canary's letters fail again and the replay stops by itself."""
        self._replay("too-early", "False", "FailureShareExceeded")
        self.stage.say("    the shop refused them again, so the rest stayed where it was")
        self.stage.until("the letters to be back", lambda: depth(self.stage) == BAD)
        self.stage.until("the depth to be called high", lambda: self._reason("Degraded") == "DepthHigh")
        self.stage.show("get", "dlq")

    def mended(self) -> None:
        """The currency is mended on the way; the shop takes all of it and the dead box is empty."""
        self._replay("mended", "True", "AllReplayed")
        self.stage.until("an empty dead box", lambda: depth(self.stage) == 0)
        self.stage.until("the alarm to end", lambda: self._reason("Degraded") == "AsExpected")
        assert self.stage.get("rply/mended")["status"]["replayed"] == BAD
        self.stage.show("get", "rply")
        self.stage.show("get", "dlq")

    def _replay(self, name: str, status: str, reason: str) -> None:
        self.stage.say(f"    applying tests/demo/manifests/{name}.yaml")
        self.stage.apply(name)
        self.stage.until(f"replay {name} to end", lambda: self._ended(name), done=lambda: self._back(name))
        self.stage.say(f"    {self._back(name)}")
        self.stage.show("get", f"rply/{name}")
        found = self.stage.condition(f"rply/{name}", "Succeeded")
        assert (found["status"], found["reason"]) == (status, reason), found

    def _back(self, name: str) -> str:
        return f"{bar(self.stage.get(f'rply/{name}').get('status', {}).get('replayed', 0), BAD)} letters sent back"

    def _metric(self, name: str, label: str = "") -> float:
        """What the operator exports of this queue."""
        lines = self.stage.cluster.kubectl("get", "--raw", METRICS).splitlines()
        ours = [line for line in lines if line.startswith(f"{name}{{") and f'"{self.stage.namespace}"' in line]
        return next((float(line.rsplit(" ", 1)[1]) for line in ours if label in line), 0.0)

    def _grouped(self) -> int:
        return sum(group["letters"] for group in self.stage.get("dlq/orders")["status"].get("groups", []))

    def _is_calm(self) -> bool:
        queues = [self.stage.get(what).get("status", {}).get("queues") for what in ("bkc/broker", "rtp/patient")]
        return queues == [1, 1] and depth(self.stage) == 0 and self._reason("Degraded") == "AsExpected"

    def _ended(self, name: str) -> bool:
        return self.stage.condition(f"rply/{name}", "Succeeded").get("status") in ("True", "False")

    def _is(self, what: str, kind: str, status: str) -> bool:
        return self.stage.condition(what, kind).get("status") == status

    def _reason(self, kind: str) -> str:
        return str(self.stage.condition("dlq/orders", kind).get("reason"))

    def send(self, sent: list[dict[str, object]]) -> None:
        """Orders for the shop, through the broker."""
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
