"""Test that models and API server accept the same generated specs."""

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from pydantic import ValidationError

from tests.api.manifests import VALID
from tests.api.server import manifest
from tools.crds import KINDS

MODELS = {kind.kind: kind for kind in KINDS}
SPECS_AT_ONCE = 60
CREATED, REJECTED = 201, (400, 422)

names = some.sampled_from(
    ["orders", "a.b", "a_b", "A", ".", "..", "...", "x" * 242, "x" * 243, "{a}:b", "a b", "ü", ""]
)
objects = some.sampled_from(["kafka", "a.b", "a-", "A", "x" * 253, "x" * 254, ""])
durations = some.sampled_from(["1s", "0s", "1h30m", "100ms", "30s", "31s", "5", "1d", "99999h", "100000h", "10s1h"])
numbers = some.sampled_from([0, 1, 2, 5, 64, 100, 256, 257, 1000, 1001, -1, 2**40])
flags = some.booleans()
expressions = some.sampled_from(["true", "error.status == 429", "é", "", "a\nb", "x" * 1025])
urls = some.sampled_from(["http://a", "https://a:1/b?c", "ftp://a", "http://u:p@a", "redis://a", "rediss://a:1/0", "x"])


def part(required=None, **optional):
    return some.fixed_dictionaries(required or {}, optional=optional)


def ref(name=objects):
    return part({"name": name})


secret_key = part({"name": objects, "key": some.sampled_from(["k", "a b", ""])})
tls = part(caSecretRef=secret_key, clientSecretRef=ref(), insecureSkipVerify=flags)
backoff = part(
    strategy=some.sampled_from(["Never", "Fixed", "Linear", "Exponential", "Schedule", "Often"]),
    initial=durations,
    factor=some.sampled_from(["2.0", "1", "0.5", "10.25", "x"]),
    max=durations,
    jitter=durations,
    schedule=some.lists(durations, max_size=2),
)
connections = part(
    kafka=part(
        {"bootstrapServers": some.lists(some.sampled_from(["a:1", "a", "a:70000", "[::1]:9"]), max_size=2)},
        tls=tls,
        defaults=part(
            partitions=numbers, config=some.dictionaries(some.sampled_from(["a.b", "A", "retention.ms"]), names)
        ),
    ),
    redis=part({"url": urls}, mode=some.sampled_from(["Standalone", "Cluster", "Sentinel"]), tls=tls),
)
policies = part(
    maxAttempts=numbers,
    maxAge=durations,
    timeout=durations,
    backoff=backoff,
    rules=some.lists(part({"name": objects, "match": expressions}, backoff=backoff, maxAttempts=numbers), max_size=2),
    circuitBreaker=part(enabled=flags, failureShare=numbers, openFor=durations),
    errorBudget=part({"letters": numbers, "per": durations}),
)
http = part(
    serviceRef=part({"name": objects}, port=numbers, path=some.sampled_from(["/", "a", "/a b"])),
    url=urls,
    success=some.lists(some.sampled_from([200, 99, "200-299", "2xx"]), max_size=2),
    headers=some.lists(part({"name": names}, value=names), max_size=1),
    tls=tls,
)
queues = part(
    {"brokerRef": ref()},
    source=part({"name": names, "group": names}),
    delivery=part({"http": http}, concurrency=numbers, inlineLimit=durations, replicas=numbers),
    dead=part(name=names, adopt=flags, partitions=numbers, retention=durations),
    redrive=part(strategy=some.sampled_from(["Manual", "Automatic", "Selective", "Disabled"]), where=expressions),
    routes=some.lists(
        part({"match": expressions, "queueRef": ref(some.sampled_from(["sample", "other"]))}), max_size=2
    ),
    capacity=part({"maxLetters": numbers}),
)
times = some.sampled_from(["2026-11-16T00:00:00Z", "2026-11-15T23:00:00-02:00", "2026-02-01", "2026-13-01T00:00:00Z"])
replays = part(
    {"queueRef": ref()},
    action=some.sampled_from(["Republish", "Archive", "Discard"]),
    select=part(
        where=expressions, since=times, until=times, limit=numbers, state=some.sampled_from(["Open", "Archived"])
    ),
    previewRef=ref(),
    to=part(origin=flags, name=names, queueRef=ref()),
    canary=part({"steps": some.lists(numbers, max_size=3)}, wait=durations),
    transform=part(setHeaders=some.dictionaries(names, names, max_size=2)),
    activeDeadline=durations,
)
bodies = some.one_of(
    connections.map(lambda spec: manifest("BrokerConnection", spec)),
    policies.map(lambda spec: manifest("RetryPolicy", spec)),
    queues.map(lambda spec: manifest("DeadLetterQueue", spec)),
    replays.map(lambda spec: manifest("Replay", spec)),
)


texts = some.one_of(names, objects, durations, expressions, urls, times, some.text(max_size=6))


def _leaves(node, path=()):
    if isinstance(node, dict | list):
        for key in range(len(node)) if isinstance(node, list) else node:
            yield from _leaves(node[key], (*path, key))
    else:
        yield path


def _changed(node, path, value):
    if not path:
        return value
    if isinstance(node, list):
        return [_changed(one, path[1:], value) if at == path[0] else one for at, one in enumerate(node)]
    return {key: _changed(one, path[1:], value) if key == path[0] else one for key, one in node.items()}


@some.composite
def almost_valid(draw):
    """Draw a valid spec with one value replaced by another of its type."""
    kind, spec = VALID[draw(some.sampled_from(sorted(VALID)))]
    leaves = sorted(_leaves(spec), key=str)
    if not leaves:
        return manifest(kind, spec)
    path = draw(some.sampled_from(leaves))
    old = spec
    for key in path:
        old = old[key]
    value = draw(flags if isinstance(old, bool) else numbers if isinstance(old, int) else texts)
    return manifest(kind, _changed(spec, path, value))


def _model_accepts(body):
    try:
        spec = MODELS[body["kind"]].from_body(body).spec
    except ValidationError:
        return False
    return all(rule.is_met(spec) for rule in spec.constraints if rule.is_for_new)


def test_models_and_server_agree(server, namespace):
    @settings(
        max_examples=5,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(
        some.lists(some.one_of(almost_valid(), almost_valid(), bodies), min_size=SPECS_AT_ONCE, max_size=SPECS_AT_ONCE)
    )
    def agree(batch):
        for body in batch:
            status, answer = server.write("POST", namespace, body)
            assert status in (CREATED, *REJECTED), answer
            assert (status == CREATED) == _model_accepts(body), (body, answer)

    agree()
