"""A living writer that blocks its streams is named and can be ended: its transaction, or its hanging process."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, transaction

from replsite.terminal.writer_actions import WriterActions
from streams.errors import UnknownWriter
from streams.models import WriterResolution
from streams.writing import terminate
from streams.writing.process import current_writer
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, ids, in_thread, linear, session, stored, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)

COMMAND_YOUNG_SECONDS = terminate.YOUNG_SECONDS
_APPEND_AND_HANG = """
import time
from django.db import transaction
from streams import registry
from streams.writing import process as writers
from streams.catalog.models import CacheInvalidation
writers.use_instance("victim")
with transaction.atomic():
    registry.get("caches").append(CacheInvalidation(cache_name="victim", keys=None))
    print("open", flush=True)
    time.sleep(600)
"""


class Session:
    """What a run of a command said, and what it was answered."""

    def __init__(self, answer: str | None = None) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []
        self.actions = WriterActions(self.said.append, self.warned.append, self._ask if answer is not None else None)
        self._answer = answer or ""

    def _ask(self, prompt: str) -> str:
        assert "rolled back" in prompt
        return self._answer

    def abort(self, writer: str = "master", *, yes: bool = False) -> None:
        with session() as cursor:
            self.actions.abort(cursor, writer, is_confirmed=yes)

    def retire(self, writer: str = "master", seconds: float = 10.0) -> None:
        with session() as cursor:
            self.actions.retire(cursor, writer, seconds)


@pytest.fixture
def blocked(monkeypatch) -> Iterator[threading.Event]:
    """This process as a living writer with a fact that another thread keeps open; set the event to roll it back."""
    monkeypatch.setattr(terminate, "YOUNG_SECONDS", 0.2)
    wait_for_linear(append()[0])
    release = threading.Event()

    def hold_open() -> None:
        with suppress(DatabaseError, InterfaceError), transaction.atomic():
            append()
            release.wait(DEADLINE_SECONDS)
            append()

    thread = in_thread(hold_open)
    wait_until(look)
    wait_until(lambda: stored()["master"].pending)
    yield release
    release.set()
    thread.join()


def look(writer: str = "master") -> tuple[terminate.OpenSession, ...]:
    with session() as cursor:
        return terminate.holding(cursor, writer).transactions


def test_transaction_is_named_with_process_host_and_since_when(blocked):
    said = Session("no")
    with pytest.raises(CommandError, match="Not confirmed"):
        said.abort()
    text = "\n".join(said.said)
    assert f"process {os.getpid()} on host {socket.gethostname()}" in text
    assert re.search(r"caches: 1 fact pending since \S+ \S+ in transaction \d+", text)
    assert re.search(r"database session \d+ from \S+ \(.*transaction \d+ open since", text)
    assert look(), "nothing was ended"
    assert not WriterResolution.objects.exists()


def test_confirmed_abort_rolls_the_transaction_back_and_the_writer_goes_on(blocked):
    assert linear() == ids()[-1]
    said = Session("master")
    said.abort()
    assert "goes on" in said.said[-1]
    assert len(ids()) == 1
    after = append()[0]
    wait_for_linear(after)
    assert stored()["master"].state == "active"


def test_abort_leaves_a_trace(blocked):
    Session().abort(yes=True)
    row = WriterResolution.objects.get()
    assert (row.action, row.stream, row.instance_name) == ("aborted", "caches", "master")
    assert "ended database session" in row.evidence
    assert row.resolved_by == f"streams abort on {socket.gethostname()}"


def test_without_anybody_to_ask_and_without_yes_nothing_happens(blocked):
    with pytest.raises(CommandError, match="--yes") as error:
        Session().abort()
    assert error.value.returncode == 2
    assert look()


def test_session_that_went_on_to_another_transaction_is_left_alone(blocked):
    with session() as cursor:
        found = terminate.holding(cursor, "master")
        blocked.set()
        wait_until(lambda: not look())
        assert terminate.end_sessions(cursor, found, "test") == []
    assert not WriterResolution.objects.exists()


def test_writer_that_holds_nothing_back():
    append()
    wait_until(lambda: not stored()["master"].pending)
    said = Session()
    said.abort(yes=True)
    assert said.said == ["master holds nothing back: no transaction of it is open for long, nothing is pending."]
    assert current_writer().has_lock


def test_busy_writer_is_not_taken_for_a_blocked_one():
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            append()

    thread = in_thread(work)
    try:
        wait_until(stored)
        said = Session()
        said.abort(yes=True)
        assert "holds nothing back" in said.said[0]
    finally:
        stop.set()
        thread.join()


def test_unknown_writer_is_told_who_exists():
    append()
    with session() as cursor, pytest.raises(UnknownWriter, match=r"no writer 'nobody'. Writers: master"):
        terminate.holding(cursor, "nobody")


def test_hanging_process_loses_its_lock_and_is_resolved_by_evidence(start_manage, monkeypatch):
    monkeypatch.setattr(terminate, "patience_seconds", lambda: 3.0)
    victim = start_manage("shell", "-v", "0", "-c", _APPEND_AND_HANG)
    assert victim.stdout.readline() == "open\n"
    number = append()[0]
    assert linear() < number
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: look("victim"))
        said = Session()
        said.abort("victim", yes=True)
        assert stored()["victim"].state == "retired"
        wait_for_linear(number)
        assert ids() == [number]
        assert {row.action for row in WriterResolution.objects.all()} == {"aborted", "resolved"}
    finally:
        os.kill(victim.pid, signal.SIGCONT)


@pytest.mark.parametrize("means", ["process", "lock holder"])
def test_a_session_that_got_the_number_of_one_that_ended_stays(monkeypatch, means):
    """An operator takes minutes to confirm. Meanwhile the session ended, and another idle one has its PID."""
    monkeypatch.setattr(terminate, "_TERMINATE_MS", 200)
    append()
    with session() as cursor, session() as innocent:
        found = terminate.holding(cursor, "master")
        assert found.lock is not None and found.lock.transaction_since is None
        innocent.execute("SELECT pg_backend_pid()")
        stale = replace(found.lock, pid=innocent.fetchone()[0])
        if means == "process":
            assert terminate.end_process(cursor, replace(found, lock=stale), "test") == []
        else:
            assert terminate.end_lock_holders(cursor, found, [stale], "test") == []
        innocent.execute("SELECT 1")
        assert innocent.fetchone() == (1,)


def test_stopped_process_with_nothing_pending_is_aborted_as_the_page_advises(start_manage, monkeypatch):
    monkeypatch.setattr(terminate, "patience_seconds", lambda: 3.0)
    victim = start_manage(
        "shell", "-v", "0", "-c", _APPEND_AND_HANG.replace("    print", "print").replace("    time", "time")
    )
    assert victim.stdout.readline() == "open\n"
    wait_until(lambda: not stored()["victim"].pending)
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        number = append()[0]
        with session() as cursor:
            wait_until(lambda: terminate.holding(cursor, "victim").is_silent)
        assert linear() < number
        with pytest.raises(CommandError, match="streams abort victim"):
            Session().retire("victim", seconds=0.1)
        said = Session()
        said.abort("victim", yes=True)
        assert "no sign of life for" in said.said[1]
        assert stored()["victim"].state == "retired"
        wait_for_linear(number)
    finally:
        os.kill(victim.pid, signal.SIGCONT)


def test_command_asks_nobody_in_a_pipe(run_manage, blocked):
    # The command is a process of its own: for it a transaction is young for as long as the code says.
    wait_until(lambda: any((one.open_seconds or 0.0) >= COMMAND_YOUNG_SECONDS for one in look()))
    done = run_manage("streams", "abort", "master", input="")
    assert (done.returncode, "--yes" in done.stderr) == (2, True)
    assert run_manage("streams", "abort", "master", "--yes").returncode == 0
    assert run_manage("streams", "abort", "nobody").returncode == 2
