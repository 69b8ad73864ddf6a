"""Errors of the options that name a dead box; no broker is contacted."""

import json

import pytest

from deadletter.cli import letters

CONNECTION = """
apiVersion: deadletter.dev/v1alpha1
kind: BrokerConnection
metadata: {name: broker}
spec: {kafka: {bootstrapServers: ["127.0.0.1:9"]}}
"""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--assignment {0}/nowhere", "--assignment {0}/nowhere: there is no assignment here. Name a queue with -n"),
        ("--assignment {0}/broken", "--assignment {0}/broken: invalid fields: paused"),
        ("--assignment {0}/text", "--assignment {0}/text: assignment.json or live.json is not JSON"),
        ("--connection {0}/nowhere", "--connection {0}/nowhere: the file cannot be read: No such file or directory"),
        (
            "--connection {0}/list.yaml",
            "--connection {0}/list.yaml: the file has no BrokerConnection; name one that has",
        ),
        ("--connection {0}/invalid.yaml", "--connection {0}/invalid.yaml: invalid fields: kafka.bootstrapServers"),
        ("--connection {0}/bad.yaml", "--connection {0}/bad.yaml: the file is not YAML"),
        (
            "--connection {0}/ok.yaml",
            "--connection needs a box: name it with --dead BOX, or its queue with --queue FILE",
        ),
        ("--connection {0}/ok.yaml --queue {0}/ok.yaml", "--queue {0}/ok.yaml: the file has no DeadLetterQueue"),
        ("orders", "QUEUE orders needs its namespace; add -n NAMESPACE"),
        ("--connection {0}/ok.yaml --dead orders.dlq --where attempts", "--where: "),
    ],
)
def test_each_error_names_its_option(tmp_path, capsys, arguments, error):
    (tmp_path / "ok.yaml").write_text(CONNECTION)
    (tmp_path / "invalid.yaml").write_text(CONNECTION.replace('["127.0.0.1:9"]', "[]"))
    (tmp_path / "list.yaml").write_text("- 1")
    (tmp_path / "bad.yaml").write_text("{secret")
    for name, live in (("broken", json.dumps({"paused": 1})), ("text", "secret")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "assignment.json").write_text("{}")
        (tmp_path / name / "live.json").write_text(live)
    assert letters.main(["list", *arguments.format(tmp_path).split()]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(error.format(tmp_path))
    assert (printed.out, "secret" in printed.err) == ("", False)


@pytest.mark.parametrize("command", ["list", "show"])
def test_every_option_has_a_help_text(command, capsys):
    with pytest.raises(SystemExit):
        letters.main([command, "--help"])
    assert "None" not in capsys.readouterr().out
    parser = letters._parser()
    parsers = next(one for one in parser._actions if one.dest == "command").choices
    assert [one.dest for one in parsers[command]._actions if not one.help] == []
