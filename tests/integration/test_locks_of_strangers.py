"""Advisory locks that a role that may only read holds: what waits for them says so, and stops nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.jobs.rows import killed_jobs
from pipeline.models import Job, JobState
from replsite.history.sampler import Sampler
from streams import registry
from streams.db import driver
from streams.db.schema_mark import marked_lock
from streams.errors import SequenceBusy, WriterBusy
from streams.homeserver.typing import expire_typing, set_typing
from streams.maintenance import check
from streams.models import PushRuleChange, TypingUser
from streams.writing.process import current_writer
from tests.support.forging import forger
from tests.support.waiting import wait_until
from tests.support.writing import append, in_thread, session, stored, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)

OTHER = "push_rules"


@pytest.fixture
def stranger() -> Iterator[Any]:
    with forger() as cursor:
        yield cursor


def hold(stranger: Any, key: int) -> int:
    """Take the lock; the number of the session that has it now."""
    stranger.execute("SELECT pg_try_advisory_lock(%s), pg_backend_pid()", [key])
    is_held, process = stranger.fetchone()
    assert is_held
    return int(process)


def key_of(name: str) -> int:
    """The key of a lock that is taken by its name in SQL."""
    with session() as cursor:
        cursor.execute(f"SELECT {marked_lock('%s')}", [name])
        return int(cursor.fetchone()[0])


def start_key() -> int:
    with session() as cursor:
        return driver.start_key(cursor, OTHER)


def test_who_cannot_enter_one_stream_goes_on_announcing_the_others(stranger, settings):
    """The lock of those that enter a stream is waited for outside of the control connection, and not for ever."""
    settings.REPLSITE_LEASE_TIMEOUT_SECONDS = 3.0
    append()
    process = hold(stranger, start_key())
    errors: list[Exception] = []

    def enter() -> None:
        try:
            registry.get(OTHER).append(PushRuleChange(user_id="@a:b"))
        except WriterBusy as error:
            errors.append(error)

    waiting = in_thread(enter)
    try:
        while waiting.is_alive():
            wait_for_linear(append()[0])
    finally:
        stranger.execute("SELECT pg_advisory_unlock_all()")
        waiting.join()
    [error] = errors
    assert OTHER in str(error) and f"database session {process} " in str(error)
    assert registry.get(OTHER).append(PushRuleChange(user_id="@a:b"))


def test_who_waits_to_enter_a_stream_enters_it_when_the_lock_is_free(stranger):
    append()
    hold(stranger, start_key())
    ids: list[int] = []
    waiting = in_thread(lambda: ids.extend(registry.get(OTHER).append(PushRuleChange(user_id="@a:b"))))
    wait_for_linear(append()[0])
    assert OTHER not in current_writer().trackers
    stranger.execute("SELECT pg_advisory_unlock_all()")
    waiting.join()
    assert ids and OTHER in current_writer().trackers


def test_a_fenced_writer_comes_back_to_all_its_streams_or_to_none(stranger, settings):
    """A stream that it left out would stay where the writer was, for as long as its process lives."""
    settings.REPLSITE_LEASE_TIMEOUT_SECONDS = 0.5
    append()
    registry.get(OTHER).append(PushRuleChange(user_id="@a:b"))
    writer = current_writer()
    hold(stranger, start_key())
    lease = writer.lease
    writer.fenced("for the test")
    wait_until(lambda: writer.lease > lease + 1, 20, "a second attempt")
    stranger.execute("SELECT pg_advisory_unlock_all()")
    wait_until(lambda: writer.has_lock and {"caches", OTHER} <= set(writer.trackers), 20)
    number = registry.get(OTHER).append(PushRuleChange(user_id="@a:b"))[0]
    wait_until(lambda: stored(OTHER)["master"].position >= number)


def test_repairing_a_sequence_names_who_keeps_it_waiting(stranger, monkeypatch):
    monkeypatch.setattr(check, "_LOCK_SECONDS", 0.2)
    process = hold(stranger, start_key())
    with session() as cursor, pytest.raises(SequenceBusy, match=f"database session {process}"):
        check.repair(cursor, registry.get(OTHER))
    stranger.execute("SELECT pg_advisory_unlock_all()")
    with session() as cursor:
        check.repair(cursor, registry.get(OTHER))


def test_a_killed_job_is_found_although_a_stranger_holds_its_lock(stranger):
    """Its row would say for ever that it is running."""
    killed = Job.objects.create(kind="k", state=JobState.RUNNING, arguments={})
    hold(stranger, key_of(f"replsite.job:{killed.pk}"))
    assert killed_jobs("default") == {killed.pk}


def test_a_sampler_that_a_stranger_keeps_out_says_so(stranger, caplog):
    caplog.set_level("INFO", "replsite.history.sampler")
    process = hold(stranger, key_of("replsite.sampler"))
    sampler = Sampler(step_seconds=0.1)
    sampler.start()
    try:
        wait_until(lambda: "history.paused" in caplog.text and f"database session {process} " in caplog.text)
        stranger.execute("SELECT pg_advisory_unlock_all()")
        wait_until(lambda: "history.goes_on" in caplog.text)
    finally:
        sampler.stop()


def test_typing_ends_in_all_rooms_but_the_one_whose_lock_is_held(stranger):
    for room in ("!a:x", "!b:x"):
        set_typing(room, "@u:x", is_typing=True, timeout_seconds=60)
    hold(stranger, key_of("replsite.typing:!a:x"))
    with session() as cursor:
        cursor.execute("UPDATE streams_typinguser SET until = clock_timestamp() - interval '1 minute'")

    def typing_rooms() -> list[str]:
        expire_typing()
        return list(TypingUser.objects.values_list("room_id", flat=True))

    wait_until(lambda: typing_rooms() == ["!a:x"])
    stranger.execute("SELECT pg_advisory_unlock_all()")
    wait_until(lambda: not typing_rooms())
