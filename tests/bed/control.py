"""A real control plane: etcd, API server and controller-manager; no node."""

from dataclasses import dataclass
from pathlib import Path

from tests.bed import binaries, certs, network, places, processes, tools
from tests.bed.processes import BedError

FIRST_SERVICE = "10.96.0.1"


@dataclass(frozen=True)
class ApiServer:
    """A running API server and the kubeconfig for it."""

    server: str
    kubeconfig: Path

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output; raise BedError with its message if it fails."""
        command = [str(binaries.path("kubectl")), f"--kubeconfig={self.kubeconfig}", *words]
        return tools.run(command, stdin=stdin, timeout=300)

    def install_crds(self) -> None:
        """Apply the CRDs and wait until they are served."""
        crds = str(places.REPOSITORY / "crds")
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", crds)
        self.kubectl("wait", "--for=condition=Established", "--timeout=120s", "-f", crds)


def programs(name: str) -> tuple[str, ...]:
    """Return the names under which its processes are recorded."""
    return (f"{name}-etcd", f"{name}-apiserver", f"{name}-controllers")


def api_server_of(bed: Path, name: str, address: str, port: int) -> ApiServer:
    """Return the API server that `start` started."""
    return ApiServer(f"https://{address}:{port}", bed / name / "pki" / "admin.kubeconfig")


def start(bed: Path, name: str, address: str, port: int, etcd: int, peer: int, controllers: int) -> None:
    """Start the three programs and wait until a namespace gets its service account."""
    server = api_server_of(bed, name, address, port)
    pki = bed / name / "pki"
    certs.make(pki, server.server, ["127.0.0.1", FIRST_SERVICE, network.ADDRESS, address])
    _start_etcd(bed, name, address, etcd, peer)
    _start_api_server(bed, name, address, port, etcd)
    # The controller-manager exits if it starts before the first roles exist.
    processes.wait_until("API server", lambda: _succeeds(server, "get", "--raw", "/readyz"), 180)
    _start_controllers(bed, name, address, controllers)
    account = ("-n", "default", "get", "serviceaccount", "default")
    processes.wait_until("controller-manager", lambda: _succeeds(server, *account), 120)


def _succeeds(server: ApiServer, *words: str) -> bool:
    try:
        server.kubectl(*words, "--request-timeout=5s")
    except BedError:
        return False
    return True


def _start_etcd(bed: Path, name: str, address: str, port: int, peer: int) -> None:
    client, between = f"http://{address}:{port}", f"http://{address}:{peer}"
    flags = {
        "name": "bed",
        "data-dir": bed / name / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": between,
        "initial-advertise-peer-urls": between,
        "initial-cluster": f"bed={between}",
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }
    processes.start(f"{name}-etcd", [binaries.path("etcd"), *to_flags(flags)], bed)


def _start_api_server(bed: Path, name: str, address: str, port: int, etcd: int) -> None:
    pki = bed / name / "pki"
    flags = {
        "etcd-servers": f"http://{address}:{etcd}",
        "secure-port": port,
        "bind-address": address,
        "advertise-address": network.ADDRESS,
        "service-cluster-ip-range": network.SERVICES,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "client-ca-file": pki / "ca.crt",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
    }
    processes.start(f"{name}-apiserver", [binaries.path("kube-apiserver"), *to_flags(flags)], bed)


def _start_controllers(bed: Path, name: str, address: str, port: int) -> None:
    pki = bed / name / "pki"
    flags = client_flags(pki / "controllers.kubeconfig", address, port) | {
        "service-account-private-key-file": pki / "sa.key",
        "root-ca-file": pki / "ca.crt",
        "use-service-account-credentials": "true",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        "flex-volume-plugin-dir": bed / name / "plugins",
    }
    processes.start(f"{name}-controllers", [binaries.path("kube-controller-manager"), *to_flags(flags)], bed)


def client_flags(kubeconfig: Path, address: str, port: int) -> dict[str, object]:
    """Return the flags that controller-manager and scheduler share."""
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "leader-elect": "false",
        "bind-address": address,
        "secure-port": port,
    }


def to_flags(flags: dict[str, object]) -> list[str]:
    """Return the command line arguments for a table of flags."""
    return [f"--{key}={value}" for key, value in flags.items()]
