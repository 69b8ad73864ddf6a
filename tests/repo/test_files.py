"""Files that every visitor looks for."""

import os
import re

import pytest
import yaml

from tests.bed import image
from tests.bed.places import REPOSITORY


def test_the_licence_is_apache_2() -> None:
    text = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize(
    "name", ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", ".editorconfig", ".pre-commit-config.yaml"]
)
def test_the_file_is_there(name: str) -> None:
    assert (REPOSITORY / name).read_text().strip()


def test_ci_runs_make_test() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("exec make test")


def test_the_workflow_of_a_public_forge_runs_make_test_on_kind_and_on_our_own_node() -> None:
    (job,) = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "test.yaml").read_text())["jobs"].values()
    assert job["strategy"]["matrix"]["provider"] == ["kind", "processes"]
    ran = [step["run"] for step in job["steps"] if "run" in step]
    assert ran == ["sudo --preserve-env=HOME make test PROVIDER=${{ matrix.provider }}"]


def test_every_target_has_its_line_of_help() -> None:
    text = (REPOSITORY / "Makefile").read_text()
    declared = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)[0].split()
    helped = re.findall(r"^([a-z-]+):.*## .+", text, re.MULTILINE)
    assert sorted(declared) == sorted(helped)


def test_the_image_runs_as_a_user_with_a_name_and_holds_only_the_product() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    assert "USER 10001:10001" in text
    assert ":x:10001:10001:" in text
    assert 'ENTRYPOINT ["python", "-m", "deadletter"]' in text
    assert image.name() == f"deadletter.dev/dlq-operator:{image.version()}"
