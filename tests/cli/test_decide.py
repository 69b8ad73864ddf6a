"""The command `decide` prints what a RetryPolicy decides about a failure."""

import io
import sys
from types import SimpleNamespace

import orjson
import pytest

from deadletter.__main__ import main as run
from deadletter.cli import decide
from deadletter.core.policy import Backoff, Policy

NOW = 1_700_000_000_000
MANIFEST = """
apiVersion: v1
kind: ConfigMap
---
apiVersion: deadletter.dev/v1alpha1
kind: RetryPolicy
metadata: {name: standard}
spec:
  maxAttempts: 4
  maxAge: 1h
  backoff: {strategy: Exponential, initial: 1s, factor: "2.0", max: 3s, jitter: 200ms}
  rules:
    - {name: vip, match: 'headers["tier"] == "vip" && key == "k" && origin.topic == "orders"', action: RetryForever}
    - {name: gone, match: error.status == 410, action: Discard}
"""


@pytest.fixture
def policy() -> Policy:
    return decide.read_policy(MANIFEST)


@pytest.mark.parametrize(
    ("failure", "verdict"),
    [
        (
            {},
            {"verdict": "Retry", "category": "Transient", "wait": "1s", "waitMs": 1_000, "at": "2023-11-14T22:13:21Z"},
        ),
        ({"error": {"status": 503}, "attempts": 2}, {"verdict": "Retry", "wait": "2s"}),
        ({"error": {"status": 503}, "attempts": 3}, {"verdict": "Retry", "wait": "3s"}),
        ({"error": {"status": 503}, "attempts": 4}, {"verdict": "Bury", "reason": "AttemptsExhausted"}),
        ({"error": {"status": 422}}, {"verdict": "Bury", "reason": "Refused", "category": "Validation"}),
        ({"error": {"status": 410}}, {"verdict": "Discard", "reason": "RuleMatched"}),
        ({"error": {"type": "Timeout"}}, {"verdict": "Retry", "category": "Network"}),
        ({"error": {"type": "Odd", "category": "Resource"}}, {"verdict": "Retry", "wait": "5s"}),
        ({"error": {"type": "Odd", "status": 429}, "retryAfter": "1m"}, {"verdict": "Retry", "wait": "1m"}),
        ({"error": {"status": 429}, "retryAfter": 30}, {"verdict": "Retry", "wait": "30s"}),
        ({"asked": "bury"}, {"verdict": "Bury", "reason": "ServiceAsked"}),
        ({"firstFailedAt": "2023-11-14T21:00:00Z"}, {"verdict": "Bury", "reason": "Expired"}),
        (
            {"headers": {"tier": "vip"}, "key": "k", "origin": {"topic": "orders"}, "attempts": 99},
            {"verdict": "Retry", "wait": "3s"},
        ),
    ],
)
def test_each_failure_has_its_verdict(policy, failure, verdict):
    fields = decide.evaluate(failure, policy, NOW)
    assert {name: fields[name] for name in verdict} == verdict


def test_chance_adds_a_share_of_the_jitter(policy):
    assert decide.evaluate({}, policy, NOW, 0.5)["waitMs"] == 1_100


def test_the_schedule_lists_waits_and_their_total(policy):
    assert decide.schedule_table(policy).splitlines() == [
        "FAILURE  WAIT          TOTAL",
        "1        1s            1s",
        "2        2s            3s",
        "3        3s            6s",
        "4        Bury",
    ]


def test_the_schedule_of_a_policy_without_retries_has_one_row():
    assert decide.schedule_table(Policy(backoff=Backoff("Never"), on_exhausted="Discard")).splitlines()[1:] == [
        "1        Discard"
    ]


def test_verdicts_go_to_stdout_and_bad_lines_to_stderr(tmp_path, monkeypatch, capsys):
    manifest = tmp_path / "policy.yaml"
    manifest.write_text(MANIFEST)
    lines = b'{"error": {"status": 503}}\n\nsecret\n{"attempts": 9}\n'
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    assert run(["decide", "-f", str(manifest), "--now", "2023-11-14T22:13:20Z", "--chance", "0.5"]) == 1
    out, err = capsys.readouterr()
    assert [orjson.loads(line)["verdict"] for line in out.splitlines()] == ["Retry", "Bury"]
    assert orjson.loads(out.splitlines()[0])["at"] == "2023-11-14T22:13:21.100Z"
    assert err == f"line 3: {decide.MALFORMED}\n"


def test_the_policy_may_come_from_standard_input_and_failures_from_a_file(tmp_path, monkeypatch, capsys):
    failures = tmp_path / "failures.jsonl"
    failures.write_text('{"error": {"status": 422}}\n')
    monkeypatch.setattr(sys, "stdin", io.StringIO(MANIFEST))
    assert run(["decide", "-f", "-", "--failures", str(failures)]) == 0
    assert orjson.loads(capsys.readouterr().out)["reason"] == "Refused"
    monkeypatch.setattr(sys, "stdin", io.StringIO(MANIFEST))
    assert run(["decide", "-f", "-", "--schedule"]) == 0
    assert "4        Bury" in capsys.readouterr().out


def test_standard_input_cannot_hold_policy_and_failures(capsys):
    with pytest.raises(SystemExit):
        run(["decide", "-f", "-"])
    assert "add --schedule, or name a file with --failures" in capsys.readouterr().err


def test_a_missing_file_of_failures_is_reported(tmp_path, capsys):
    path = tmp_path / "policy.yaml"
    path.write_text(MANIFEST)
    assert run(["decide", "-f", str(path), "--failures", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_the_schedule_option_prints_the_schedule(tmp_path, capsys):
    manifest = tmp_path / "policy.yaml"
    manifest.write_text(MANIFEST)
    assert run(["decide", "-f", str(manifest), "--schedule"]) == 0
    assert "2        2s            3s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("manifest", "error"),
    [
        ("kind: ConfigMap", "no RetryPolicy"),
        ("kind: RetryPolicy\nspec: {maxAttempts: 0}", "maxAttempts"),
        ("kind: RetryPolicy\nspec: {rules: [{name: a, match: 'nope ='}]}", "1:6"),
        ("{", "--file"),
        (None, "No such file"),
    ],
)
def test_a_manifest_without_a_valid_policy_is_refused(tmp_path, capsys, manifest, error):
    path = tmp_path / "policy.yaml"
    if manifest is not None:
        path.write_text(manifest)
    assert run(["decide", "-f", str(path)]) == 1
    assert error in capsys.readouterr().err


def test_an_invalid_time_is_refused_with_its_option(tmp_path, capsys):
    path = tmp_path / "policy.yaml"
    path.write_text(MANIFEST)
    assert run(["decide", "-f", str(path), "--now", "noon"]) == 1
    assert capsys.readouterr().err.startswith("--now noon: ")
