"""Builders of manifests, and valid specs of every kind."""

CONNECTION, POLICY, QUEUE, REPLAY = "BrokerConnection", "RetryPolicy", "DeadLetterQueue", "Replay"


def merged(base, change):
    """Return the base with parts replaced; None removes a part."""
    result = dict(base)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


KAFKA = {"kafka": {"bootstrapServers": ["kafka.infra.svc:9092"]}}
REDIS = {"redis": {"url": "rediss://redis.infra.svc:6379/0"}}
HTTP = {"serviceRef": {"name": "billing"}}
DELIVERED = {
    "brokerRef": {"name": "kafka"},
    "source": {"name": "orders", "group": "billing"},
    "delivery": {"http": HTTP},
}
PLAIN = {"brokerRef": {"name": "kafka"}, "dead": {"name": "orders.dlq"}}
ADOPTED = {"brokerRef": {"name": "kafka"}, "dead": {"name": "orders.dlq", "adopt": True}}
REPLAYED = {"queueRef": {"name": "orders"}}


def kafka(**change):
    return CONNECTION, merged(KAFKA, {"kafka": change})


def redis(**change):
    return CONNECTION, merged(REDIS, {"redis": change})


def policy(**change):
    return POLICY, change


def rule(**change):
    return POLICY, {"rules": [merged({"name": "one", "match": "true"}, change)]}


def delivered(**change):
    return QUEUE, merged(DELIVERED, change)


def http(**change):
    return delivered(delivery={"http": change})


def plain(**change):
    return QUEUE, merged(PLAIN, change)


def adopted(**change):
    return QUEUE, merged(ADOPTED, change)


def replay(**change):
    return REPLAY, merged(REPLAYED, change)


VALID = {
    "kafka": kafka(),
    "kafka with an IPv6 broker": kafka(bootstrapServers=["[::1]:9092", "b:65535"]),
    "kafka with everything": kafka(
        tls={"caSecretRef": {"name": "ca", "key": "ca.crt"}, "clientSecretRef": {"name": "c"}},
        sasl={"mechanism": "PLAIN", "secretRef": {"name": "user"}},
        defaults={"partitions": 3, "replicationFactor": 3, "config": {"min.insync.replicas": "2"}},
    ),
    "redis": redis(),
    "redis without a port": redis(url="redis://redis"),
    "redis with tls": redis(tls={"insecureSkipVerify": True}, secretRef={"name": "u"}),
    "redis cluster": redis(mode="Cluster"),
    "redis sentinel": redis(mode="Sentinel", sentinel={"masterName": "m", "nodes": ["s:26379"]}),
    "an empty policy": policy(),
    "never retried": policy(maxAttempts=1, backoff={"strategy": "Never"}),
    "max as long as initial": policy(backoff={"initial": "30s"}),
    "a schedule": policy(backoff={"strategy": "Schedule", "schedule": ["1s", "1h30m"]}),
    "durations in any order": policy(maxAge="10s30m1h", timeout="100ms200ms300ms"),
    "a rule": rule(category="Network", action="RetryForever", maxAttempts=1000, backoff={"initial": "0s"}),
    "a budget": policy(errorBudget={"letters": 1, "per": "1ms"}),
    "no circuit": policy(circuitBreaker={"enabled": False}, onExhausted="Discard"),
    "a delivered queue": delivered(),
    "a delivered queue with a named box": delivered(dead={"name": "{orders}:dead", "config": {"segment.ms": "1"}}),
    "the longest derived name": delivered(source={"name": "o" * 135, "group": "g" * 100}),
    "https": http(serviceRef=None, url="https://example.com:8443/a?b=c", tls={"insecureSkipVerify": True}),
    "headers": http(
        headers=[
            {"name": "X-Team", "value": ""},
            {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        success=[204, "200-299"],
        forwardHeaders=["traceparent", "ce_*", "*"],
    ),
    "resources": delivered(delivery={"replicas": 0, "resources": {"requests": {"cpu": 1, "memory": "1.5Gi"}}}),
    "a plain queue": plain(),
    "a plain queue with redrive": plain(redrive={"strategy": "Automatic"}),
    "an adopted queue": adopted(),
    "an observed queue": adopted(redrive={"strategy": "Disabled"}),
    "a selective queue": adopted(redrive={"strategy": "Selective", "where": "attempts < 3"}),
    "a routed queue": delivered(routes=[{"match": "true", "queueRef": {"name": "other"}}]),
    "redaction": plain(redaction={"headers": ["authorization"], "jsonPointers": ["/card/number", "/a~1b//~0"]}),
    "alerts and capacity": plain(alerts={"depth": 1, "age": "1h"}, capacity={"maxLetters": 1}),
    "a replay": replay(),
    "a selection": replay(select={"since": "2026-11-15T00:00:00Z", "until": "2026-11-15T01:00:00+01:00"}),
    "ids": replay(select={"ids": ["0-1", "1731715200000-0"], "fingerprint": "ab12cd34"}),
    "a preview": replay(previewRef={"name": "dry"}),
    "to the origin": replay(to={"origin": True}),
    "to a box": replay(to={"name": "orders.retry"}),
    "to a service": replay(to={"serviceRef": {"name": "billing"}}),
    "to a queue": replay(to={"queueRef": {"name": "other"}}),
    "archived": replay(action="Archive", select={"limit": 1}),
    "all archived": replay(action="Archive", select={"all": True}),
    "a discard of a preview": replay(action="Discard", previewRef={"name": "dry"}),
    "a preview of a discard": replay(action="Discard", mode="DryRun"),
    "restored": replay(select={"state": "Archived"}),
    "canary and verify": replay(canary={"steps": [1, 10, 10]}, verify={}),
    "a transform": replay(
        transform={
            "setHeaders": {"x-fixed": "✓"},
            "jsonPatch": [
                {"op": "replace", "path": "/a", "value": {"deep": [1.5, None, True]}},
                {"op": "move", "path": "/b", "from": "/c"},
            ],
        }
    ),
}
