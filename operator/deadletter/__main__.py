"""Run one of the roles of the image: `python -m deadletter <role>`."""

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
    """Run a role and return its exit code. Only the modules of that role are imported."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] not in ROLES:
        print(f"usage: python -m deadletter {{{','.join(ROLES)}}} ...", file=sys.stderr)
        return 2
    code: int = import_module(ROLES[args[0]]).main(args[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
