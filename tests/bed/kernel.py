"""Kernel settings that the kubelet changes for the whole machine: saved first, restored after the last node."""

import json
from pathlib import Path

from tests.bed import places

_CHANGED = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
            "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes")  # fmt: skip


def save() -> None:
    """Save the settings, unless another node has changed them already."""
    file = _file()
    if not file.exists():
        found = {key: (Path("/proc/sys") / key).read_text().strip() for key in _CHANGED if _exists(key)}
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps(found))
        aside.rename(file)


def restore() -> None:
    """Restore the settings."""
    file = _file()
    if file.exists():
        for key, value in json.loads(file.read_text()).items():
            if (Path("/proc/sys") / key).read_text().strip() != value:
                (Path("/proc/sys") / key).write_text(value)
        file.unlink()


def is_saved() -> bool:
    """True if saved settings have to be restored."""
    return _file().exists()


def _exists(key: str) -> bool:
    return (Path("/proc/sys") / key).exists()


def _file() -> Path:
    return places.state() / "kernel.json"
