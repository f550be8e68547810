"""Processes of the version before and of this one on one database, before and after the tables are migrated."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
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

pytestmark = pytest.mark.scenario

#: What the page undoes to go back to a version that takes IDs before it holds a stream.
BEFORE_HOLDS = {"events": "0020", "streams_catalog": "0002", "streams": "0025", "pipeline": "0011"}
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
    from tests.support.made_rooms import MadeRoom
    from tests.support.persisted_rooms import incoming, persist
    retire_all = lambda: None
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
try:
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
finally:
    ended.set()
    appending.join()
retire_all()
"""


#: Keeps values: of a key, and of the state of a room. Each line is answered by one.
_KEEPER = """
import sys
sys.path.insert(0, "")
import django
django.setup()
from streams import registry
try:
    from streams.caches import ROOM_STATE, Kept, invalidate, invalidate_room_state
    def keeps(name, first):
        values = {}
        kept = Kept(name, lambda keys: values.pop(keys[0] if first else tuple(keys), None), values.clear)
        def value(*key):
            mark = kept.mark()
            at = key[0] if first else key
            if mark is None or at not in values:
                computed.append(key)
                kept.keep(mark, lambda: values.__setitem__(at, "value"))
        return value
    by_key, by_room = keeps("both", False), keeps(ROOM_STATE, True)
    drop, drop_all = lambda *key: invalidate("both", key)[0], lambda: invalidate("both")[0]
except ImportError:  # the version before
    from streams.caching import cached, invalidate_room_state
    by_key = cached("both")(lambda *key: computed.append(key))
    by_room = cached("both_rooms", room_state=lambda room, users: [(room,)])(lambda *key: computed.append(key))
    drop, drop_all = by_key.invalidate, by_key.invalidate_all
computed = []
for line in sys.stdin:
    verb, *given = line.split()
    answer = ""
    if verb in ("key", "room"):
        computed.clear()
        (by_key if verb == "key" else by_room)(*given)
        answer = "computed" if computed else "kept"
    elif verb == "wait":
        registry.get("caches").wait_for(int(given[0]), 30.0)
    else:
        answer = {"drop": drop, "drop_all": drop_all, "state": lambda room: invalidate_room_state(room)[0]}[verb](*given)
    print(answer, flush=True)
"""


class Worker:
    """A process of one version that stores and checks rooms, and appends facts all the while."""

    def __init__(self, database: Production, folder: Path, program: str = _WORKER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=database.environment(DJANGO_SETTINGS_MODULE="replsite.settings", REPLSITE_INSTANCE="worker-{n}"),
            start_new_session=True,
        )  # fmt: skip
        database.started.append(self._process)

    def do(self, line: str) -> None:
        assert self.ask(line) == f"done {line}"

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().removesuffix("\n")

    def fail(self, line: str) -> None:
        """Ends with an error at this line."""
        stdout, _ = self._process.communicate(f"{line}\n", timeout=DEADLINE_SECONDS)
        assert stdout == "" and self._process.returncode == 1

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


def followed(database: Production, server: dict[str, int], code: Path) -> Followed:
    address = f"tcp://127.0.0.1:{server['replication']}"
    return Followed(database.start("follow", address, "--from", "caches=1", *FOLLOW, folder=code))


def test_the_site_is_stopped_for_the_upgrade_and_to_go_back(database, before):
    """The order of the page. Who migrates beside older processes loses nothing: these are refused what they would append."""
    old, older_worker = serve(database, before, "old"), Worker(database, before)
    older_worker.do("store !old:a.test")
    wait_until(lambda: facts(database))  # the thread that appends may be slower to begin
    database.manage("migrate", "-v", "0", role="replsite_owner")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        is_ready(old["http"])
    older_worker.fail("store !refused:a.test")
    database.stop()
    count = len(facts(database))
    Worker(database, before).fail("store !afterwards:a.test")
    assert len(facts(database)) == count

    new, newer_worker = serve(database, PROJECT, "new"), Worker(database, PROJECT)
    assert is_ready(new["http"])
    newer_worker.do("store !new:a.test")
    for room in ("!old:a.test", "!new:a.test"):
        newer_worker.do(f"check {room}")
    wait_until(lambda: len(facts(database)) > count)
    follower = followed(database, new, PROJECT)
    newer_worker.end()
    every = facts(database)
    wait_until(lambda: set(follower.tokens) >= every - {min(every)})
    assert len(follower.tokens) == len(set(follower.tokens))
    database.stop()

    for app, name in BEFORE_HOLDS.items():
        database.manage("migrate", "-v", "0", app, name, role="replsite_owner")
    old, older_worker = serve(database, before, "old"), Worker(database, before)
    for line in ("check !new:a.test", "store !again:a.test"):
        older_worker.do(line)
    wait_until(lambda: facts(database) - every)
    older_worker.end()
    follower = followed(database, old, before)
    wait_until(lambda: set(follower.tokens) >= facts(database) - {min(every)})
    assert is_ready(old["http"])
