"""Every command of README and docs is run word for word and prints what the page says, or stands here with a reason."""

import re
import time
from pathlib import Path

import pytest
import yaml

from tests.bed import places
from tests.bed.beds import Bed
from tests.bed.node import Cluster
from tests.bed.processes import BedError
from tests.demo import story
from tests.docs import commands, transcripts
from tests.docs.commands import Command
from tests.docs.worlds import BAD, World

PATIENCE = 150
ORDER = (
    "README.md", "docs/guides/replay-after-an-incident.md", "docs/guides/adopt-an-existing-queue.md",
    "docs/guides/choose-a-policy.md", "docs/guides/migrate-from-retry-code.md", "docs/guides/scale.md",
    "docs/guides/secure.md", "docs/guides/gitops.md", "docs/operations/alerts.md",
    "docs/operations/troubleshoot.md", "docs/operations/operate.md",
)  # fmt: skip
# Commands that no bed can run, each with the reason why.
NOT_RUN = {
    r"make test(-\w+)?( .*)?": "it is what runs these tests",
    r"make (demo( BROKER=redis)?|demo-picture|demo-down)": "tests/e2e/test_story.py tells it and compares the README",
    r"make (image|setup|lint|check|bed-status)": "`make test` has done it before any test runs: the pods run its image",
    r"make requirements": "downloads packages from an index",
    r"make bed-up PROVIDER=kind": "needs Docker",
    r"make bed-up PARTS=kafka-cluster": "the fixture kafka_cluster starts the same part",
    r"docker build .*": "needs Docker; `make image` builds the same Dockerfile",
    r"make (bench|bench-.+)": "measures for minutes on a quiet machine",
    r"make crds": "tests/api/test_generated.py writes the same files and wants no difference",
    r"kafka-(acls|reassign-partitions) .*": "Kafka's own tools; tests/brokers/test_ledger_replication.py does it",
    r"python -m deadletter (letters|decode)": "the name of a door; its own tests open it",
}
# A reader puts a name of his own here.
PLACEHOLDER = "0-1234"
ANYHOW = tuple(range(256))
SAYS_NO = "kubectl auth can-i"
LOOKS = re.compile(r"kubectl (-n [\w-]+ )?(get|wait|logs|describe|explain|exec) ")


def is_run(command: Command) -> bool:
    return not any(re.fullmatch(pattern, command.words) for pattern in NOT_RUN)


def test_every_page_with_commands_is_in_the_walk() -> None:
    found = {command.page for command in filter(is_run, commands.every())}
    assert found <= set(ORDER), f"not walked: {found - set(ORDER)}"


def test_every_exception_is_still_needed() -> None:
    texts = [command.words for command in commands.every()]
    for pattern in NOT_RUN:
        assert any(re.fullmatch(pattern, text) for text in texts), pattern


def prints(world: World, command: Command) -> None:
    """Run it; what only looks is looked at again until the page is right."""
    print(f"{command.page}: {command.text}", flush=True)
    codes = (0, 1) if command.text.startswith(SAYS_NO) else (0,)
    only_looks = LOOKS.match(command.text)
    ending = time.monotonic() + (PATIENCE if only_looks else 0)
    while True:
        printed = _try(world, command.text, codes, time.monotonic() > ending)
        if command.printed is None and printed is not None:
            return
        if printed is not None and transcripts.plain(printed) == transcripts.plain(command.printed or ""):
            return
        if time.monotonic() > ending:
            assert printed == command.printed, f"{command.page}: {command.text}"
        time.sleep(1)


def _try(world: World, text: str, codes: tuple[int, ...], is_last: bool) -> str | None:
    try:
        return world.run(text, codes)
    except BedError:
        if is_last:
            raise
        return None


@pytest.mark.node
@pytest.mark.timeout(1200)
def test_the_commands_of_readme_and_docs_do_what_the_pages_say(cluster: Cluster, bed: Bed, tmp_path: Path) -> None:
    world = World(cluster, bed, tmp_path)
    world.make()
    try:
        walk_readme(world)
        walk_docs(world)
    except Exception:
        print(world.run("kubectl get deadletters,pods -A -o wide", ANYHOW))
        print(world.run(f"kubectl -n dlq-system logs {story.OPERATOR} --tail=40", ANYHOW))
        raise
    finally:
        world.end()


def walk_readme(world: World) -> None:
    """From an empty cluster to an empty dead box; the world acts where the page says so."""
    waits_for_letters = True
    for command in filter(is_run, commands.in_blocks("README.md")):
        if waits_for_letters and f" {BAD} " in (command.printed or ""):
            world.incident()
            waits_for_letters = False
        if "name: look" in command.text:
            world.serve("DOGE")
        prints(world, command)


def walk_docs(world: World) -> None:
    """With letters to look at: what readers copy, then what the pages mention, and last of all the uninstall."""
    world.serve("EUR")
    world.incident()
    world.stage.until("letters to look at", lambda: story.depth(world.stage) == BAD)
    *pages, last = ORDER[1:]
    mentioned = [command for page in ORDER for command in commands.in_sentences(page)]
    ending = [command for command in mentioned if command.text.startswith("kubectl delete")]
    walked = [command for page in pages for command in commands.in_blocks(page)]
    walked += [command for command in mentioned if command not in ending]
    for command in filter(is_run, [*walked, *ending, *commands.in_blocks(last)]):
        text = command.text.replace(PLACEHOLDER, world.a_letter()) if PLACEHOLDER in command.text else command.text
        prints(world, Command(command.page, text, command.printed))


def manifests() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(places.REPOSITORY)), text)
        for page in commands.PAGES
        for language, text in commands.BLOCK.findall(page.read_text())
        if language == "yaml" and "\nkind: " in f"\n{text}" and "fluxcd" not in text
    ]


@pytest.mark.parametrize(("page", "text"), manifests())
def test_every_manifest_of_the_docs_is_one_the_api_server_takes(crds, namespace: str, page: str, text: str) -> None:
    assert yaml.safe_load(text), page
    crds.kubectl("-n", namespace, "apply", "--dry-run=server", "-f", "-", stdin=text)
