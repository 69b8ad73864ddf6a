"""Run every command of README and docs word for word and compare its output with the page; exceptions have a reason."""

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
from tests.docs.shop_environment import BAD, ShopEnvironment

TIMEOUT_S = 150
ORDER = (
    "README.md", "docs/guides/replay-after-an-incident.md", "docs/guides/adopt-an-existing-queue.md",
    "docs/guides/choose-a-policy.md", "docs/guides/migrate-from-retry-code.md", "docs/guides/scale.md",
    "docs/guides/secure.md", "docs/guides/gitops.md", "docs/operations/alerts.md",
    "docs/operations/troubleshoot.md", "docs/operations/operate.md",
)  # fmt: skip
# Commands that a test bed cannot run, each with the reason.
NOT_RUN = {
    r"make test(-\w+)?( .*)?": "it is what runs these tests",
    r"make (demo( BROKER=redis)?|demo-picture|demo-down)": "tests/e2e/test_demo.py runs it and compares the README",
    r"make (image|setup|lint|check|bed-status)": "`make test` has done it before any test runs: the pods run its image",
    r"make requirements": "downloads packages from an index",
    r"make bed-up PROVIDER=kind": "needs Docker",
    r"make bed-up PARTS=kafka-cluster": "the fixture kafka_cluster starts the same part",
    r"docker build .*": "needs Docker; `make image` builds the same Dockerfile",
    r"make (bench|bench-.+)": "measures for minutes on a quiet machine",
    r"make crds": "tests/api/test_generated_files.py writes the same files and expects no difference",
    r"kafka-(acls|reassign-partitions) .*": "Kafka's own tools; tests/brokers/test_ledger_replication.py does it",
    r"python -m deadletter (letters|decode)": "only the name of a command; it has tests of its own",
}
# The reader replaces this id.
PLACEHOLDER = "0-1234"
ANY_EXIT_CODE = tuple(range(256))
MAY_EXIT_1 = "kubectl auth can-i"
READ_ONLY = re.compile(r"kubectl (-n [\w-]+ )?(get|wait|logs|describe|explain|exec) ")


def is_run(command: Command) -> bool:
    return not any(re.fullmatch(pattern, command.without_comment) for pattern in NOT_RUN)


def test_every_page_with_commands_is_in_the_order() -> None:
    found = {command.page for command in filter(is_run, commands.all_commands())}
    assert found <= set(ORDER), f"not in ORDER: {found - set(ORDER)}"


def test_every_exception_is_still_needed() -> None:
    texts = [command.without_comment for command in commands.all_commands()]
    for pattern in NOT_RUN:
        assert any(re.fullmatch(pattern, text) for text in texts), pattern


def assert_prints(shop: ShopEnvironment, command: Command) -> None:
    """Run a command and compare its output. Commands that only read are repeated until the output matches."""
    print(f"{command.page}: {command.text}", flush=True)
    codes = (0, 1) if command.text.startswith(MAY_EXIT_1) else (0,)
    is_read_only = READ_ONLY.match(command.text)
    deadline = time.monotonic() + (TIMEOUT_S if is_read_only else 0)
    while True:
        printed = _run_once(shop, command.text, codes, time.monotonic() > deadline)
        if command.printed is None and printed is not None:
            return
        if printed is not None and transcripts.normalise(printed) == transcripts.normalise(command.printed or ""):
            return
        if time.monotonic() > deadline:
            assert printed == command.printed, f"{command.page}: {command.text}"
        time.sleep(1)


def _run_once(shop: ShopEnvironment, text: str, codes: tuple[int, ...], is_last: bool) -> str | None:
    try:
        return shop.run(text, codes)
    except BedError:
        if is_last:
            raise
        return None


@pytest.mark.node
@pytest.mark.timeout(1200)
def test_the_commands_of_readme_and_docs_do_what_the_pages_say(cluster: Cluster, bed: Bed, tmp_path: Path) -> None:
    shop = ShopEnvironment(cluster, bed, tmp_path)
    shop.make()
    try:
        run_readme(shop)
        run_docs(shop)
    except Exception:
        print(shop.run("kubectl get deadletters,pods -A -o wide", ANY_EXIT_CODE))
        print(shop.run(f"kubectl -n dlq-system logs {story.OPERATOR} --tail=40", ANY_EXIT_CODE))
        raise
    finally:
        shop.end()


def run_readme(shop: ShopEnvironment) -> None:
    """Run the README from an empty cluster to an empty dead box; the service changes where the page says so."""
    waits_for_letters = True
    for command in filter(is_run, commands.in_blocks("README.md")):
        if waits_for_letters and f" {BAD} " in (command.printed or ""):
            shop.incident()
            waits_for_letters = False
        if "name: look" in command.text:
            shop.serve("DOGE")
        assert_prints(shop, command)


def run_docs(shop: ShopEnvironment) -> None:
    """Run all other pages with letters in the queue: code blocks, commands in sentences, and the uninstall last."""
    shop.serve("EUR")
    shop.incident()
    shop.stage.until("letters in the queue", lambda: story.depth(shop.stage) == BAD)
    *pages, last = ORDER[1:]
    mentioned = [command for page in ORDER for command in commands.in_sentences(page)]
    last_commands = [command for command in mentioned if command.text.startswith("kubectl delete")]
    queued = [command for page in pages for command in commands.in_blocks(page)]
    queued += [command for command in mentioned if command not in last_commands]
    for command in filter(is_run, [*queued, *last_commands, *commands.in_blocks(last)]):
        text = command.text.replace(PLACEHOLDER, shop.a_letter()) if PLACEHOLDER in command.text else command.text
        assert_prints(shop, Command(command.page, text, command.printed))


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
