"""The version before this one: what its migrations end with, and its code out of this repository's history."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.session import PROJECT

#: To be moved on with each release that has migrations.
COMMIT = "c2e741f97f2793c11919e37886f599af8a5e9284"
LEAVES = {
    "streams": "0012_operators",
    "state": "0003_full_state",
    "events": "0011_purged_rooms",
    "pipeline": "0006_resync",
}
_ROOMS = ("manage.py", "replsite", "streams", "events", "state", "pipeline", "templates", "migrations")
_TESTS = ("tests/made_rooms.py", "tests/persisted_rooms.py")


def is_in_history() -> bool:
    """Whether this is a clone with enough history; an archive of the code has none."""
    asked = ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"]
    try:
        return subprocess.run(asked, cwd=PROJECT, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def unpack(folder: Path) -> None:
    """Put its code into the folder."""
    archive = ["git", "archive", COMMIT, *_ROOMS, *_TESTS]
    packed = subprocess.run(archive, cwd=PROJECT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
