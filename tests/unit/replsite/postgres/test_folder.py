"""The folder's record and locks."""

from __future__ import annotations

import fcntl
import os

import pytest

from replsite.postgres.folder import Folder, ServerRecord, is_same_file, open_lock, try_lock


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def test_record_comes_back_as_written(folder):
    folder.write_record(ServerRecord(5432, 17, ready=True))
    assert folder.read_record() == ServerRecord(5432, 17, ready=True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"other": 1}', "7"])
def test_record_that_cannot_be_read_is_none(folder, text):
    (folder.path / "server.json").write_text(text)
    assert folder.read_record() is None


def test_no_record_is_none(folder):
    assert folder.read_record() is None
    assert folder.running_server() is None


def test_record_of_a_process_that_is_no_server_does_not_run(folder):
    folder.write_record(ServerRecord(5432, os.getpid(), ready=True))
    assert folder.running_server() is None


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
