"""The demo ended in the middle of a step: nothing of it is left, and its status says that not everything was checked.

The processes with which it stays up outlive restarts of their database.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
from django.db.backends.postgresql.base import Database

from script.demonstration import Demo
from tests.support.floods import status_of
from tests.support.own_folder import OwnFolder
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until

_MARK = "REPLSITE_TEST_OF_THE_DEMO"
#: The demo with one room and fewer live facts: its steps are the same.
_PROGRAM = """
import sys
from pathlib import Path
from script import demonstration

demonstration.ROOMS = Path(sys.argv.pop(1))
demonstration.LIVE_EVENTS = demonstration.LIVE_INVALIDATIONS = 200
sys.exit(demonstration.main())
"""
_ROOM = PROJECT / "tests" / "data" / "rooms" / "v10_gap"


class Demonstration:
    """``script/demo``, by default with ``--once``, without its set-up, in a group of processes as a terminal makes one."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.log = folder / "log"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(mode=0o755, exist_ok=True)
        rooms = folder / "rooms"
        rooms.mkdir(mode=0o755, exist_ok=True)
        if not (rooms / _ROOM.name).exists():
            (rooms / _ROOM.name).symlink_to(_ROOM)
        env = {**os.environ, "TMPDIR": str(self.temporary), _MARK: str(folder), **env}
        env.pop("DATABASE_URL", None)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(rooms), *(arguments or ("--once",))],
                cwd=PROJECT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def has_said(self, words: str) -> bool:
        return words in self.log.read_text() or self.process.poll() is not None

    def living(self) -> list[str]:
        """Its processes, the demo itself included."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def close(self) -> None:
        """Kills what runs still."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE_SECONDS)


@pytest.fixture
def demonstration(tmp_path: Path) -> Iterator[Demonstration]:
    running = Demonstration(tmp_path)
    yield running
    running.close()


@pytest.mark.scenario
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("words", "by_terminal"),
    [
        ("database:", False),
        ("site:", True),
        ("import:", False),
        ("import:", True),
        ("live:", True),  # and Spark begins to count
        ("check:", True),  # after which the counts are waited for
    ],
)
def test_an_interrupted_demo_leaves_nothing_and_is_no_success(demonstration, words, by_terminal):
    wait_until(lambda: demonstration.has_said(words), 8 * DEADLINE_SECONDS, words)
    if by_terminal:
        os.killpg(demonstration.process.pid, signal.SIGINT)
    else:
        demonstration.process.terminate()
    assert demonstration.process.wait(DEADLINE_SECONDS) == 130, demonstration.log.read_text()
    wait_until(lambda: not demonstration.living(), what="all its processes have ended")
    assert not list(demonstration.temporary.glob("replsite-demo-*"))


@pytest.mark.scenario
@pytest.mark.slow
def test_a_demo_starts_at_once_where_another_one_was_interrupted(tmp_path):
    arguments, data = ("--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"), str(tmp_path / "data")
    with ExitStack() as stack:
        for _ in range(2):
            demo = Demonstration(tmp_path, *arguments, REPLSITE_DATA_DIR=data)
            stack.callback(demo.close)
            wait_until(lambda demo=demo: demo.has_said("site:"), 2 * DEADLINE_SECONDS)
            os.killpg(demo.process.pid, signal.SIGINT)
            assert demo.process.wait(DEADLINE_SECONDS) == 130, demo.log.read_text()
        wait_until(lambda: not demo.living(), what="all its processes have ended")


def written(site: OwnFolder) -> dict[str, int]:
    """The last fact of each writer; empty while the database is away."""
    sql = "SELECT instance_name, max(last_write_position) FROM streams_streamposition GROUP BY instance_name"
    if site.server.running() is None:
        return {}
    try:
        with closing(Database.connect(site.url())) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return dict(cursor.fetchall())
    except (Database.Error, OSError):
        return {}


@pytest.mark.scenario
@pytest.mark.slow
def test_the_writers_of_the_demo_go_on_after_restarts_of_the_database(tmp_path):
    (tmp_path / "log").mkdir()
    site = OwnFolder(tmp_path)
    with ExitStack() as stack:
        demo = Demo(tmp_path, "127.0.0.1:0", "127.0.0.1:0", stack)
        demo.serve()
        writers = demo.go_on()

        def beyond(before: dict[str, int]) -> dict[str, int]:
            now = written(site)
            is_beyond = {"writer-1", "writer-2"} <= set(now) and all(now[one] > before[one] for one in before)
            return now if is_beyond else {}

        wait_until(lambda: beyond({}))
        for _ in range(2):
            server = psutil.Process(site.server.running().pid)
            server.send_signal(signal.SIGINT)  # its sessions are ended, and who connects next starts another
            server.wait(DEADLINE_SECONDS)
            before = wait_until(lambda: written(site))
            wait_until(lambda before=before: beyond(before), what="both writers write again")
        assert [process.poll() for process in writers] == [None, None]
        port = int(demo.addresses["http"].rpartition(":")[2])
        wait_until(lambda: status_of(port, "/health/ready") == 200)
    wait_until(site.is_stopped)
