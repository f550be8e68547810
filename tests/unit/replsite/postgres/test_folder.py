"""The folder's server and locks."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from replsite.postgres.folder import Folder, Server, is_postgres_of, is_same_file, open_lock, try_lock
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def describe(folder: Folder, pid: int, status: str) -> None:
    """Write what PostgreSQL writes of a server."""
    lines = [str(pid), str(folder.cluster), "1700000000", "5432", "", "127.0.0.1", "  1 2", status]
    folder.cluster.mkdir(exist_ok=True)
    (folder.cluster / "postmaster.pid").write_text("\n".join(lines) + "\n")


@pytest.fixture
def process(folder) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like the folder's server."""
    command = ["postgres", "-c", "import time; time.sleep(60)", "-D", str(folder.cluster)]
    with subprocess.Popen(command, executable=sys.executable) as process:
        wait_until(lambda: is_postgres_of(process.pid, folder.cluster))
        yield process
        process.kill()


@pytest.mark.parametrize("text", ["", "{", "7", "7\n/x\n1\nport\n", "7\n/x\n1\n5432\n"])
def test_a_description_that_cannot_be_read_is_none(folder, text):
    folder.cluster.mkdir()
    (folder.cluster / "postmaster.pid").write_text(text)
    assert folder.server() is None


def test_no_description_is_none(folder):
    assert folder.server() is None
    assert folder.running_server() is None


def test_a_description_of_a_process_that_is_no_server_does_not_run(folder):
    describe(folder, os.getpid(), "ready   ")
    assert folder.server() is None


def test_a_server_runs_when_it_takes_connections_and_has_a_keeper(folder, process):
    keeper = try_lock(folder.keeper_lock, fcntl.LOCK_EX)
    for status in ("starting", "stopping", "ready   "):
        describe(folder, process.pid, status)
        assert folder.server() == Server(process.pid, 5432, status.strip() == "ready")
        assert (folder.running_server() is not None) == (status.strip() == "ready")
    os.close(keeper)
    assert folder.running_server() is None


def test_a_copy_of_the_folder_has_no_server(folder, process, tmp_path_factory):
    copy = Folder(tmp_path_factory.mktemp("copy"))
    copy.cluster.mkdir()
    describe(folder, process.pid, "ready   ")
    (copy.cluster / "postmaster.pid").write_bytes((folder.cluster / "postmaster.pid").read_bytes())
    assert copy.server() is None


def test_second_holder_of_an_exclusive_lock_is_refused(folder):
    first = try_lock(folder.keeper_lock, fcntl.LOCK_EX)
    assert first is not None
    assert folder.has_keeper()
    assert try_lock(folder.keeper_lock, fcntl.LOCK_EX) is None
    os.close(first)
    assert not folder.has_keeper()


def test_shared_holders_bear_each_other(folder):
    both = [try_lock(folder.users_lock, fcntl.LOCK_SH) for _ in range(2)]
    assert None not in both
    for descriptor in both:
        os.close(descriptor)


def test_lock_files_are_closed_to_others(folder):
    os.close(open_lock(folder.users_lock))
    assert folder.users_lock.stat().st_mode & 0o077 == 0


def test_replaced_lock_file_is_noticed(folder):
    descriptor = open_lock(folder.users_lock)
    assert is_same_file(descriptor, folder.users_lock)
    folder.users_lock.unlink()
    assert not is_same_file(descriptor, folder.users_lock)
    os.close(descriptor)


def test_locks_are_not_inherited_by_programs(folder):
    descriptor = open_lock(folder.users_lock)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_log_tail_is_the_end_of_the_log(folder):
    assert "empty" in folder.log_tail()
    folder.log.write_text("\n".join(str(n) for n in range(50)))
    assert folder.log_tail(3) == "47\n48\n49"
