"""Invalid specs that each break one rule, with the expected message."""

from tests.api.manifests import (
    CONNECTION,
    KAFKA,
    QUEUE,
    REDIS,
    adopted,
    delivered,
    http,
    kafka,
    plain,
    policy,
    redis,
    replay,
    rule,
)

DURATION = "must be a duration such as 500ms, 30s, 15m or 1h30m"
TIME = "must be a time such as 2026-11-16T08:30:00Z"
OBJECT = "must be the name of an object: lower case letters, digits, '-' and '.'"
BOX = "must be the name of a topic or stream: letters, digits"
CREDENTIALS = "url must not contain credentials"
CONFIG = "config must contain only names of topic configs, and not cleanup.policy"
HEADER = "must be a header name"
ASCII = "must be a CEL expression in ASCII"
POINTER = "must be a JSON pointer such as"

INVALID = {
    "no broker": ((CONNECTION, {}), "exactly one of kafka and redis must be set"),
    "two brokers": ((CONNECTION, KAFKA | REDIS), "exactly one of kafka and redis must be set"),
    "a broker without a port": (kafka(bootstrapServers=["kafka"]), "bootstrapServers must each be host:port"),
    "an absurd port": (kafka(bootstrapServers=["kafka:65536"]), "bootstrapServers must each be host:port"),
    "a broker with credentials": (
        kafka(bootstrapServers=["u:p@kafka:9092"]),
        "bootstrapServers must each be host:port",
    ),
    "a config that the operator sets": (kafka(defaults={"config": {"cleanup.policy": "compact"}}), CONFIG),
    "a config of spaces": (kafka(defaults={"config": {"a b": "1"}}), CONFIG),
    "a config with a newline": (kafka(defaults={"config": {"a": "1\n2"}}), "must be plain ASCII"),
    "a url with credentials": (redis(url="redis://u:p@redis:6379"), CREDENTIALS),
    "another scheme": (redis(url="http://redis:6379"), "url must be redis://host:port/database or rediss://"),
    "tls without rediss": (redis(url="redis://redis", tls={}), "tls requires a url that begins with rediss://"),
    "sentinel without nodes": (redis(mode="Sentinel"), "sentinel must be set if and only if mode is Sentinel"),
    "sentinel without its mode": (
        redis(sentinel={"masterName": "m", "nodes": ["s:1"]}),
        "sentinel must be set if and only if mode is Sentinel",
    ),
    "a bad master": (
        redis(mode="Sentinel", sentinel={"masterName": "m m", "nodes": ["s:1"]}),
        "must be the name of a master",
    ),
    "a bad node": (
        redis(mode="Sentinel", sentinel={"masterName": "m", "nodes": ["s"]}),
        "nodes must each be host:port",
    ),
    "a bad secret name": (redis(secretRef={"name": "A_b"}), OBJECT),
    "a bad secret key": (
        kafka(tls={"caSecretRef": {"name": "a", "key": "a b"}}),
        "must be a key of a Secret: letters, digits, '-', '_' and '.'",
    ),
    "max below initial": (policy(backoff={"initial": "1m"}), "max (30s if unset) must not be shorter than initial"),
    "a schedule without Schedule": (
        policy(backoff={"schedule": ["1s"]}),
        "schedule must be set if and only if strategy is Schedule",
    ),
    "Schedule without a schedule": (
        policy(backoff={"strategy": "Schedule"}),
        "schedule must be set if and only if strategy is Schedule",
    ),
    "a factor below one": (
        policy(backoff={"factor": "0.5"}),
        'must be a decimal number in quotes from "1" to "999.999"',
    ),
    "a duration without a unit": (policy(timeout="1"), DURATION),
    "no timeout": (policy(timeout="0s"), "timeout must be longer than 0s"),
    "no age": (policy(maxAge="0h0m0s"), "maxAge must be longer than 0s"),
    "an open circuit of no time": (policy(circuitBreaker={"openFor": "0s"}), "openFor must be longer than 0s"),
    "a budget of no time": (policy(errorBudget={"letters": 1, "per": "0s"}), "per must be longer than 0s"),
    "two rules of one name": (
        policy(rules=[{"name": "a", "match": "true"}, {"name": "a", "match": "false"}]),
        "rules must have unique names",
    ),
    "a rule's bad name": (rule(name="A"), "must be lower case letters, digits and '-'"),
    "an expression with a control character": (rule(match="a\x07"), ASCII),
    "source alone": (delivered(delivery=None), "set both source and delivery, or neither"),
    "delivery alone": (delivered(source=None, dead={"name": "a"}), "set both source and delivery, or neither"),
    "neither source nor dead": ((QUEUE, {"brokerRef": {"name": "k"}}), "dead.name is required without source"),
    "adopt without a name": (
        adopted(dead={"name": None}),
        "adopt requires name: set it to the existing topic or stream",
    ),
    "adopt with partitions": (adopted(dead={"partitions": 3}), "adopt does not configure the box: remove partitions"),
    "adopt with source": (
        delivered(dead={"name": "a", "adopt": True}),
        "dead.adopt cannot be combined with source",
    ),
    "a derived name too long": (
        delivered(source={"name": "o" * 136, "group": "g" * 100}),
        "dead.name is required: the default <source>.<group>.dlq is longer than 242 characters",
    ),
    "dead is source": (delivered(dead={"name": "orders"}), "must differ from source.name"),
    "retry is source": (
        delivered(source={"name": "a.retry"}, dead={"name": "a"}),
        "dead.name, dead.name.retry and dead.name.ledger must differ from source.name",
    ),
    "Disabled and not adopted": (
        plain(redrive={"strategy": "Disabled"}),
        "redrive.strategy Disabled requires dead.adopt: set it",
    ),
    "redrive with delivery": (
        delivered(redrive={"strategy": "Automatic"}),
        "redrive.strategy Automatic and Selective cannot be combined with delivery",
    ),
    "Selective without where": (
        adopted(redrive={"strategy": "Selective"}),
        "where must be set if and only if strategy is Selective",
    ),
    "no retention": (plain(dead={"retention": "0s"}), "retention must be longer than 0s"),
    "an alert at once": (plain(alerts={"age": "0s"}), "age must be longer than 0s"),
    "an unknown dialect": (plain(dead={"dialect": "klingon"}), "must be one of Auto, "),
    "a box called dot": (plain(dead={"name": "."}), BOX),
    "a box called dots": (plain(dead={"name": ".."}), BOX),
    "a box in unicode": (plain(dead={"name": "коробка"}), BOX),
    "a box with a control character": (plain(dead={"name": "a\u0007b"}), BOX),
    "a group of spaces": (delivered(source={"group": "a b"}), "must be the name of a consumer group"),
    "a queue's bad config": (plain(dead={"config": {"retention.ms": "1"}}), CONFIG),
    "a route to itself": (
        plain(routes=[{"match": "true", "queueRef": {"name": "sample"}}]),
        "routes must not reference the queue itself",
    ),
    "a bad pointer": (plain(redaction={"jsonPointers": ["card"]}), POINTER),
    "a bad hidden header": (plain(redaction={"headers": ["a b"]}), HEADER),
    "no target": (http(serviceRef=None), "exactly one of serviceRef and url must be set"),
    "two targets": (http(url="https://a"), "exactly one of serviceRef and url must be set"),
    "credentials in the target": (http(serviceRef=None, url="https://u:p@a/"), CREDENTIALS),
    "a file url": (
        http(serviceRef=None, url="file:///etc/passwd"),
        "url must begin with http:// or https:// and a host",
    ),
    "tls without https": (
        http(serviceRef=None, url="http://a", tls={}),
        "tls requires a url that begins with https://",
    ),
    "a bad service": (http(serviceRef={"name": "9a"}), "must be the name of a Service"),
    "a bad path": (http(serviceRef={"path": "a"}), "must begin with '/' and be plain ASCII"),
    "a header without a value": (http(headers=[{"name": "a"}]), "exactly one of value and valueFrom must be set"),
    "a header of ours": (
        http(headers=[{"name": "Host", "value": "a"}]),
        "name must not be a header that the courier sets",
    ),
    "a header on two lines": (http(headers=[{"name": "a", "value": "b\r\nc"}]), "must be plain ASCII on one line"),
    "a bad forwarded header": (http(forwardHeaders=["*a"]), "must be a header name, optionally with a trailing '*'"),
    "a bad status": (http(success=["2xx"]), 'must be a status such as 204, or a range such as "200-299"'),
    "a status too high": (http(success=[600]), 'must be a status such as 204, or a range such as "200-299"'),
    "a bad quantity": (
        delivered(delivery={"resources": {"limits": {"cpu": "much"}}}),
        "must be a quantity such as 100m, 2 or 64Mi",
    ),
    "an unknown request": (
        delivered(delivery={"resources": {"requests": {"gpu": 1}}}),
        "requests must contain only cpu and memory",
    ),
    "an unknown limit": (
        delivered(delivery={"resources": {"limits": {"gpu": 1}}}),
        "limits must contain only cpu and memory",
    ),
    "a malformed time": (replay(select={"since": "yesterday"}), TIME),
    "until before since": (
        replay(select={"since": "2026-11-16T00:00:00Z", "until": "2026-11-15T00:00:00Z"}),
        "since must not be later than until",
    ),
    "a bad id": (replay(select={"ids": ["first"]}), "must be a letter id as `letters list` prints it, such as 0-1234"),
    "a bad fingerprint": (replay(select={"fingerprint": "XY"}), "must be a fingerprint from the queue's status"),
    "no target of a replay": (
        replay(to={"origin": False}),
        "exactly one of origin: true, name, serviceRef and queueRef must be set",
    ),
    "two targets of a replay": (replay(to={"origin": True, "name": "a"}), "exactly one of origin: true, name"),
    "steps that decrease": (replay(canary={"steps": [10, 1]}), "steps must not decrease"),
    "a preview and a selection": (
        replay(previewRef={"name": "dry"}, select={"limit": 1}),
        "previewRef uses the selection of the preview: remove the conditions in select",
    ),
    "all and a condition": (
        replay(select={"all": True, "limit": 1}),
        "all: true selects every letter: remove it or the other conditions",
    ),
    "a preview and all": (
        replay(previewRef={"name": "dry"}, select={"all": True}),
        "previewRef uses the selection of the preview: remove the conditions in select",
    ),
    "a discard with a target": (
        replay(action="Discard", to={"origin": True}),
        "to, transform, canary and verify require action Republish",
    ),
    "archived twice": (
        replay(action="Archive", select={"state": "Archived"}),
        "action Archive requires select.state Open: archived letters cannot be archived again",
    ),
    "no deadline": (replay(activeDeadline="0s"), "activeDeadline must be longer than 0s"),
    "a bad header to set": (
        replay(transform={"setHeaders": {"a b": "c"}}),
        "setHeaders must have header names as keys",
    ),
    "a bad header to remove": (replay(transform={"removeHeaders": ["a b"]}), "must be a header name: ASCII"),
    "move from nowhere": (
        replay(transform={"jsonPatch": [{"op": "move", "path": "/a"}]}),
        "from must be set if and only if op is move or copy",
    ),
    "a bad patch path": (replay(transform={"jsonPatch": [{"op": "remove", "path": "a"}]}), POINTER),
}
