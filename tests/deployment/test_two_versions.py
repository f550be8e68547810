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

from tests.deployment import older
from tests.deployment.conftest import Production, made_by_the_page
from tests.deployment.followed import Followed
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import ready_ports

FOLLOW = ("--streams", "caches", "--json", "--name", "beside")
#: Works with the code of the current folder: appends until its input ends, and does what each line of that asks for.
_WORKER = """
import sys, threading, time
sys.path.insert(0, "")
import django
django.setup()
from django.core.management import call_command
from streams import registry
from streams.models import CacheInvalidation  # where both versions find it
try:
    from streams.writing.process import retire_all
    from tests.support.made_rooms import MadeRoom
    from tests.support.persisted_rooms import incoming, persist
except ImportError:  # the version before has them elsewhere
    from streams.writers import retire_all
    from tests.made_rooms import MadeRoom
    from tests.persisted_rooms import incoming, persist
ended = threading.Event()
def append():
    while not ended.wait(0.02):
        registry.get("caches").append(CacheInvalidation(cache_name="worker", keys=["k"]))
appending = threading.Thread(target=append)
appending.start()
for line in sys.stdin:
    verb, room = line.split()
    if verb == "store":
        made = MadeRoom("10", room, ruled=True)
        for _ in range(3):
            made.message()
        persist([incoming(event) for event in made.events])
    else:
        call_command("check_room", room, stdout=sys.stderr)
    print("done", line, end="", flush=True)
ended.set()
appending.join()
retire_all()
"""


class Worker:
    """A process of one version that stores and checks rooms, and appends facts all the while."""

    def __init__(self, database: Production, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER], cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=database.environment(DJANGO_SETTINGS_MODULE="replsite.settings", REPLSITE_INSTANCE="worker-{n}"),
            start_new_session=True,
        )  # fmt: skip
        database.started.append(self._process)

    def do(self, line: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"done {line}\n"

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(DEADLINE_SECONDS) == 0


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


def serve(database: Production, folder: Path, name: str) -> dict[str, int]:
    address = ["--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"]
    return ready_ports(database.start("serve", *address, folder=folder, REPLSITE_INSTANCE=name))


def is_ready(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=DEADLINE_SECONDS) as answer:
        return bool(json.load(answer)["well"])


def facts(database: Production) -> set[int]:
    with database.session() as cursor:
        cursor.execute("SELECT stream_id FROM streams_cacheinvalidation")
        return {token for (token,) in cursor.fetchall()}


def test_both_versions_work_side_by_side_while_the_tables_are_migrated(database, before):
    """The order of the page: migrate beside the older processes, start newer ones, go back at any time."""
    old, older_worker = serve(database, before, "old"), Worker(database, before)
    older_worker.do("store !old:a.test")
    wait_until(lambda: facts(database))  # the thread that appends may be slower to begin
    count = len(facts(database))
    database.manage("migrate", "-v", "0", role="replsite_owner")
    assert is_ready(old["http"])
    new, newer_worker = serve(database, PROJECT, "new"), Worker(database, PROJECT)
    assert is_ready(new["http"])
    followers = [
        Followed(
            database.start(
                "follow", f"tcp://127.0.0.1:{server['replication']}", "--from", "caches=1", *FOLLOW, folder=code
            )
        )
        for server, code in ((new, before), (old, PROJECT))
    ]
    newer_worker.do("store !new:a.test")
    for worker in (newer_worker, older_worker):
        for room in ("!old:a.test", "!new:a.test"):
            worker.do(f"check {room}")
    for worker in (newer_worker, older_worker):
        worker.end()
    every = facts(database)
    assert len(every) > count
    for follower in followers:
        wait_until(lambda follower=follower: set(follower.tokens) >= every - {min(every)})
        assert len(follower.tokens) == len(set(follower.tokens))
    assert is_ready(old["http"]) and is_ready(new["http"])
