"""Processes of the version before and of this one on one database, while and after the tables are migrated."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.conftest import end_process
from tests.deployment import older
from tests.deployment.conftest import Production, made_by_the_page
from tests.deployment.followed import Followed
from tests.session import PROJECT
from tests.waiting import wait_until
from tests.wire_client import ready_ports

pytestmark = pytest.mark.skipif(not older.is_in_history(), reason="the version before is not in this clone's history")

FOLLOW = ("--streams", "caches", "--json", "--name", "beside")
#: Stores a room with the code of the current folder, and checks the rooms that are named.
_ROOMS = """
import sys
sys.path.insert(0, "")
import django
django.setup()
from django.core.management import call_command
from events.persist import persist
from tests.made_rooms import MadeRoom
from tests.persisted_rooms import incoming
own, *others = sys.argv[1:]
made = MadeRoom("10", own, ruled=True)
for _ in range(3):
    made.message()
persist([incoming(event) for event in made.events])
call_command("check_room", own, *others)
"""


@pytest.fixture(scope="module")
def before() -> Iterator[Path]:
    """The code of the version before."""
    with TemporaryDirectory() as name:
        older.unpack(Path(name))
        yield Path(name)


@pytest.fixture(scope="module")
def database(server, before: Path) -> Iterator[Production]:
    """A database as the version before made it."""
    with made_by_the_page(server, "_older", before) as made:
        yield made


def rooms(database: Production, folder: Path, *names: str) -> None:
    """Store the first room with the code in the folder, and check all of them with it."""
    done = subprocess.run(
        [sys.executable, "-c", _ROOMS, *names], cwd=folder, env=database.environment(DJANGO_SETTINGS_MODULE="replsite.settings"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def serve(database: Production, folder: Path, name: str) -> dict[str, int]:
    address = ["--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"]
    return ready_ports(database.start("serve", *address, folder=folder, REPLSITE_INSTANCE=name))


def is_ready(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=60) as answer:
        return bool(json.load(answer)["well"])


def facts(database: Production) -> set[int]:
    with database.session() as cursor:
        cursor.execute("SELECT stream_id FROM streams_cacheinvalidation")
        return {token for (token,) in cursor.fetchall()}


def test_both_versions_work_side_by_side_while_the_tables_are_migrated(database, before):
    """The order of the page: migrate beside the older processes, start newer ones, go back at any time."""
    old = serve(database, before, "old")
    load = database.start("append", "caches", "--count", "100000", "--rate", "50", folder=before)
    wait_until(lambda: facts(database), 60)
    database.manage("migrate", "-v", "0", role="replsite_owner")
    assert is_ready(old["http"])
    new = serve(database, PROJECT, "new")
    assert is_ready(new["http"])
    followers = [
        Followed(
            database.start(
                "follow", f"tcp://127.0.0.1:{ports['replication']}", "--from", "caches=1", *FOLLOW, folder=code
            )
        )
        for ports, code in ((new, before), (old, PROJECT))
    ]
    rooms(database, before, "!old:a.test")
    rooms(database, PROJECT, "!new:a.test", "!old:a.test")
    rooms(database, before, "!older:a.test", "!new:a.test")
    database.manage("append", "caches", "--count", "10")
    assert load.poll() is None, "the older writer went on"
    end_process(load)
    every = facts(database)
    for follower in followers:
        wait_until(lambda follower=follower: set(follower.tokens) >= every - {min(every)}, 60)
        assert len(follower.tokens) == len(set(follower.tokens))
    assert is_ready(old["http"]) and is_ready(new["http"])
