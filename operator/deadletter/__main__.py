"""One image, many roles: the first word of the command says which."""

import sys
from importlib import import_module

ROLES = {
    "operator": "deadletter.controller.main",
    "courier": "deadletter.workers.courier.main",
    "replay": "deadletter.workers.replay.main",
    "redrive": "deadletter.workers.redrive.main",
    "decode": "deadletter.cli.decode",
    "decide": "deadletter.cli.decide",
    "letters": "deadletter.cli.letters",
    "release-finalizers": "deadletter.controller.release_finalizers",
}


def main(argv: list[str] | None = None) -> int:
    """Run a role and give its exit code; only that role's modules are imported."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] not in ROLES:
        print(f"usage: python -m deadletter {{{','.join(ROLES)}}} ...", file=sys.stderr)
        return 2
    code: int = import_module(ROLES[words[0]]).main(words[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
