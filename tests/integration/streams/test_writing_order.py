"""What a writing process says of itself holds, whatever came late, was interrupted, or is lost by a crash of the server.

The danger: a position is believed by followers that pass over facts which stand under it, because they are written later, or
because their IDs are given out once more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction

from streams import registry
from streams.catalog.models import TypingUser
from streams.core.positions import RETIRED
from streams.core.tracker import PositionTracker
from streams.db import driver
from streams.errors import WriterFenced
from streams.homeserver import typing
from streams.load_generator import generator
from streams.models import StreamPosition
from streams.reading.position_notifications import CHANNEL, PositionNotification, notify_position
from streams.stream_object import Stream
from streams.testing import forget_writers
from streams.writing import append as appends
from streams.writing.process import current_writer
from streams.writing.transaction import OpenTransaction
from streams.writing.writer import WriterProcess
from tests.integration.streams.test_catalog import _sequences_as_after_migrate
from tests.support.impatient_server import impatient
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import (
    append,
    ids,
    in_thread,
    linear,
    other_writer,
    session,
    stored,
    terminate,
    wait_for_linear,
    waiting_sessions,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_cached_functions")]

__all__ = ["_sequences_as_after_migrate"]  # the fixture


class Interrupted(Exception):
    """Raised by a signal's handler, at any moment: a time limit of a task, for instance."""


def test_word_of_the_last_life_of_a_stream_does_not_move_its_new_one():
    """The other writer said it before it left, and this process had no time to hear it before it began the stream anew."""
    append()
    StreamPosition.objects.create(stream="typing", instance_name="other", position=500, state=RETIRED)
    writer = current_writer()
    with writer._lock:
        with other_writer("other") as cursor:
            notify_position(cursor, "typing", "other", 500)
        assert generator("typing", 0).append(1) == [1]
    wait_until(lambda: stored("typing")["master"].position >= 1, what="the fact is announced")
    assert stored("typing")["master"].position == 1
    assert writer.trackers["typing"].announceable == writer.trackers["typing"].linear == 1


def test_word_of_another_writer_after_the_beginning_is_believed():
    append()
    writer = current_writer()
    writer.tracker(registry.get("typing"))
    with other_writer("other") as cursor:

        def heard() -> (
            bool
        ):  # the writer speaks on: what is not proved at once means a look at the table, which lacks it
            notify_position(cursor, "typing", "other", 5)
            return writer.trackers["typing"].raw_positions.get("other") == 5

        wait_until(heard, what="the other is heard")


def test_a_new_life_does_not_wait_for_ever_for_a_transaction_that_waits_for_it(monkeypatch):
    """The process lost its name between two steps of a transaction, which keeps a row that the new life is to delete."""
    monkeypatch.setattr("streams.writing.new_life.LOCK_SECONDS", 1)
    typing.set_typing("!r:x", "@a:x", True)
    writer = current_writer()

    def type_on() -> None:
        with transaction.atomic():
            TypingUser.objects.update(user_id="@b:x")
            writer.fenced("test")
            wait_until(waiting_sessions, what="the new life waits for the row")
            with suppress(WriterFenced):
                generator("typing", 0).append(1)

    thread = in_thread(type_on)
    thread.join(DEADLINE_SECONDS)
    is_stuck = thread.is_alive()
    if is_stuck:
        terminate(*waiting_sessions())
    assert not is_stuck
    wait_until(lambda: generation() == 1, what="the stream has begun anew")


def generation() -> int:
    return max(at.generation for at in stored("typing").values())


@pytest.fixture
def interrupted_append(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next message is answered, but the answer does not come to who waits for it."""
    append()
    real, done = appends.driver.send_together, threading.Event()

    def send(*arguments: object) -> object:
        answer = real(*arguments)
        if not done.is_set():
            done.set()
            raise Interrupted
        return answer

    monkeypatch.setattr(appends.driver, "send_together", send)
    yield


@pytest.mark.usefixtures("interrupted_append")
def test_what_an_interrupted_append_inserted_is_not_passed_before_its_transaction_ends():
    tracker = current_writer().trackers["caches"]
    with transaction.atomic():
        with suppress(Interrupted):  # the caller goes on without it, or so it believes
            append()
        hidden = ids()[-1]
        later: list[int] = []
        in_thread(lambda: later.extend(append())).join()
        assert hidden < later[0]
        assert tracker.announceable < hidden
    assert hidden in ids()
    wait_until(lambda: stored()["master"].position >= later[0], what="the transaction has ended")


@pytest.mark.usefixtures("interrupted_append")
def test_an_interrupted_append_that_is_rolled_back_holds_nothing_up():
    with pytest.raises(Interrupted), transaction.atomic():
        append()
    head = append()[0]
    wait_until(lambda: linear() >= head, what="the linear position")  # beyond it, when an ID was taken to find the head


def test_an_interrupt_on_the_way_in_leaves_no_stream_of_an_earlier_life_behind(monkeypatch):
    """Nobody else moves its position on: the name is held, so it cannot be resolved."""
    append()
    generator("receipts", 0).append(1)
    forget_writers()
    real, done = WriterProcess._start, threading.Event()

    def start(writer: WriterProcess, stream: Stream) -> PositionTracker:
        if not done.is_set():
            done.set()
            raise Interrupted
        return real(writer, stream)

    monkeypatch.setattr(WriterProcess, "_start", start)
    with pytest.raises(Interrupted):
        append()
    wait_until(lambda: current_writer().trackers.keys() >= {"caches", "receipts"}, what="both streams are entered")


@pytest.fixture
def lazy_disk(transactional_db: None) -> Iterator[None]:
    """Nobody writes the log to the disk but a commit that waits for it: of any database, the setting is the server's."""
    with session() as cursor:
        cursor.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        cursor.execute("ALTER SYSTEM SET wal_writer_flush_after = '2GB'")
        cursor.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            cursor.execute("ALTER SYSTEM RESET wal_writer_delay")
            cursor.execute("ALTER SYSTEM RESET wal_writer_flush_after")
            cursor.execute("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("lazy_disk")
def test_an_id_that_was_let_go_is_announced_when_no_crash_gives_it_out_again():
    """A rollback waits for no disk: a crash could take the sequence back below what followers were told."""
    append()
    with session() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
        with suppress(Interrupted), transaction.atomic():
            (*_, last) = append(100)  # the sequence is written each 32 values
            cursor.execute("SELECT pg_current_wal_insert_lsn()")
            (written,) = cursor.fetchone()
            raise Interrupted
        wait_until(lambda: last in heard(cursor), what="the position is announced")
        cursor.execute("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", [written])
        assert cursor.fetchone()[0]


@pytest.mark.usefixtures("lazy_disk")
def test_a_new_life_of_a_stream_is_on_the_disk_before_anybody_hears_of_it(monkeypatch):
    """A crash would take it back, and the next new life would have its number and its IDs again."""
    append()
    written: list[str] = []

    def note(cursor: Any) -> None:
        cursor.execute("SELECT pg_current_wal_insert_lsn()")
        written.append(cursor.fetchone()[0])

    monkeypatch.setattr(registry.get("typing"), "when_begun_anew", [note])
    current_writer().tracker(registry.get("typing"))
    with session() as cursor:
        cursor.execute("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", written)
        assert cursor.fetchone()[0]


@pytest.fixture
def lazy_commits(lazy_disk: None) -> Iterator[None]:
    """The server's owner prefers fast commits to lasting ones."""
    with impatient(synchronous_commit="off"):
        yield


@pytest.mark.usefixtures("lazy_commits")
def test_a_fact_that_a_crash_could_take_back_is_not_announced():
    append()
    with session() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
        (fact,) = append()
        cursor.execute("SELECT pg_current_wal_insert_lsn()")
        (written,) = cursor.fetchone()
        wait_until(lambda: fact in heard(cursor), what="the position is announced")
        cursor.execute("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", [written])
        assert cursor.fetchone()[0]


def heard(cursor: Any) -> list[int | None]:
    """The positions that were told since the cursor's connection listens."""
    own = cursor.connection
    return [PositionNotification.parse(notify.payload).position for notify in driver.receive(own)]


def test_a_transaction_that_the_server_has_forgotten_does_not_keep_the_writer_silent():
    """After a crash or a restore the server gives out numbers again; who asks for one above them gets an error."""
    append()
    writer = current_writer()
    record = OpenTransaction(writer, 2**40 + 12_345)
    writer.watch(record)
    writer.ask(record)
    wait_for_linear(append()[0])
    wait_until(lambda: record.ended, what="the transaction is known to be over")
