"""The probes and metrics that a worker serves."""

import asyncio

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from deadletter.workers.courier.status import StatusReporter
from deadletter.workers.health import MAX_REQUEST_BYTES, ProbeHandlers, serve_probes
from tests.workers.couriers import MemoryQueue, courier_assignment
from tests.workers.http_service import serving


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, answer.content_type, await answer.text()


async def test_each_probe_returns_its_current_problem():
    problems = {"live": "", "ready": "BrokerUnreachable: no answer"}
    handlers = ProbeHandlers(lambda: problems["live"], lambda: problems["ready"])
    async with serve_probes(handlers, 0, "127.0.0.1") as port:
        assert (await ask(port, "/healthz"))[0] == 200
        assert await ask(port, "/readyz") == (503, "text/plain", "BrokerUnreachable: no answer\n")
        problems.update(live="no progress", ready="")
        assert await ask(port, "/healthz") == (503, "text/plain", "no progress\n")
        assert (await ask(port, "/readyz?verbose=1"))[0] == 200


async def test_metrics_come_from_the_given_registry():
    registry = CollectorRegistry()
    Gauge("dlq_test_letters", "Letters of a test.", registry=registry).set(7)
    async with serve_probes(ProbeHandlers(registry=registry), 0, "127.0.0.1") as port:
        status, kind, text = await ask(port, "/metrics")
    assert (status, kind) == (200, "text/plain")
    assert "dlq_test_letters 7.0" in text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/x", 404), ("POST", "/healthz", 405), ("HEAD", "/healthz", 200)],
)
async def test_other_paths_and_methods_are_refused(method: str, path: str, status: int):
    async with serve_probes(ProbeHandlers(), 0, "127.0.0.1") as port:
        assert (await ask(port, path, method))[0] == status


@pytest.mark.parametrize("noise", [b"", b"\x00\xff", b"GET", b"x" * (MAX_REQUEST_BYTES + 1), b"\r\n\r\n"])
async def test_invalid_requests_end_only_their_connection(noise: bytes):
    async with serve_probes(ProbeHandlers(), 0, "127.0.0.1") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(noise)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert (await ask(port, "/healthz"))[0] == 200


class _IdleSubscription:
    lag = 0
    parked_letters = 0
    blocked_by = None

    async def report_status(self, status):
        raise AssertionError("the watchdog writes nothing")


async def test_the_watchdog_fails_only_if_lag_grows_without_progress_or_a_pause():
    queue, subscription, now, paused = MemoryQueue(), _IdleSubscription(), 0, ""
    async with (
        serving() as service,
        queue.courier(courier_assignment(service.url), paused=lambda: paused) as courier,
    ):
        reporter = StatusReporter(courier, subscription, "pod", ("a", "b"), lambda: 0, 1)  # type: ignore[arg-type]
        handlers = ProbeHandlers(lambda: reporter.stuck_reason(now))

        def is_live(at: int) -> bool:
            nonlocal now
            now = at
            return handlers.respond("/healthz")[0] == 200

        assert is_live(0)
        assert is_live(10_000)  # idle for hours
        subscription.lag = 5
        assert is_live(10_100)
        assert not is_live(10_400)
        paused = "Suspended"
        assert is_live(10_500)
        paused, subscription.lag = "", 6
        assert is_live(10_600)
        assert not is_live(11_000)
        courier.in_flight.progress_count += 1
        assert is_live(11_100)
