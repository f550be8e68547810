"""Advisory locks that a role that may only read holds: what waits for them says so, and stops nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction

from events.errors import PurgeRefused
from events.maintenance.purge_history import purge_lock
from pipeline.errors import ExportRunning
from pipeline.export.export import _snapshot
from pipeline.jobs.rows import killed_jobs
from pipeline.models import Job, JobState
from replsite.history.sampler import Sampler
from replsite.snapshot.take import take_snapshot
from streams import registry
from streams.catalog.models import CacheInvalidation, Presence, PushRuleChange, TypingUser
from streams.db import driver
from streams.db.schema_mark import marked_lock
from streams.errors import SequenceBusy, TrimBusy, WriterBusy
from streams.homeserver.typing import expire_typing, set_typing
from streams.maintenance import check
from streams.maintenance.trim import _only_one
from streams.writing import append_lock, lease, terminate
from streams.writing.dead_writers import resolve_writer
from streams.writing.process import current_writer
from tests.support.forging import forger
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, in_thread, session, stored, stream, wait_for_linear, waiting_sessions

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
    wait_until(lambda: writer.lease > lease + 1, what="a second attempt")
    stranger.execute("SELECT pg_advisory_unlock_all()")
    wait_until(lambda: writer.has_lock and {"caches", OTHER} <= set(writer.trackers))
    number = registry.get(OTHER).append(PushRuleChange(user_id="@a:b"))[0]
    wait_until(lambda: stored(OTHER)["master"].position >= number)


def test_nobody_knows_the_locks_of_the_messages_to_come(stranger):
    """``pg_locks`` shows those of the present ones; who held the next thousand kept the end of a lost message unknown."""
    append()
    writer = current_writer()
    seen = next(writer.in_doubt.lock_keys)
    stranger.execute(
        "SELECT count(pg_advisory_lock_shared(key)) FROM generate_series(%s::bigint, %s::bigint) AS key",
        [seen + 1, seen + 1_000],
    )
    registry.get("caches").append(CacheInvalidation(cache_name="x", keys=["k"]))
    keys = [next(writer.in_doubt.lock_keys) for _ in range(100)]
    assert not [key for key in keys if seen < key <= seen + 1_000]
    assert len(set(keys)) == 100 and all(0 <= key < 2**62 for key in keys)


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


def test_who_types_in_a_room_whose_lock_is_held_is_told_by_whom(stranger, settings):
    settings.REPLSITE_LEASE_TIMEOUT_SECONDS = 0.5
    set_typing("!b:x", "@u:x", is_typing=True)
    process = hold(stranger, key_of("replsite.typing:!a:x"))
    errors: list[BaseException] = []

    def types() -> None:
        try:
            set_typing("!a:x", "@u:x", is_typing=True)
        except WriterBusy as error:
            errors.append(error)

    goes_on(stranger, types)
    assert "!a:x" in str(errors[0]) and f"database session {process} " in str(errors[0])
    assert set_typing("!a:x", "@u:x", is_typing=True)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_the_newest_fact_of_a_key_is_kept_whatever_lock_is_held(stranger, isolation):
    """Its append took an advisory lock whose key everyone can work out, and waited for it without end."""
    stream = registry.get("presence")
    stream.append(Presence(user_id="@a:x", state="online"))
    stranger.execute(
        "SELECT count(pg_advisory_lock(hashtextextended('replsite.newest:streams_presence', n))) FROM generate_series(0, 63) n"
    )

    def append_one() -> None:
        with transaction.atomic():
            connection.cursor().execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            stream.append(Presence(user_id="@a:x", state="busy"))

    goes_on(stranger, append_one)
    assert list(Presence.objects.values_list("state", flat=True)) == ["busy"]


def test_a_stranger_cannot_lock_the_rows_that_take_their_place(stranger):
    registry.get("presence").append(Presence(user_id="@a:x", state="online"))
    stranger.execute("SELECT count(*) FROM streams_keylock")
    assert stranger.fetchone() == (1,)
    for mode in ("UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"):
        with pytest.raises(driver.DatabaseError, match="permission denied"):
            stranger.execute(f"SELECT FROM streams_keylock FOR {mode}")


def blocked_sentence(name: str) -> str:
    """What the page says of the writer of a stream, as soon as it is blocked."""

    def found() -> str:
        """The sentence, once the session of the append waits. To end that session would not help, so no command does it."""
        status = take_snapshot().stream(name).writers[0].status
        return status.sentence if status.word == "blocked" and not status.command else ""

    return wait_until(found, what="blocked")


def append_key() -> int:
    with session() as cursor:
        return driver.append_key(cursor, "master")


def goes_on(stranger: Any, work: Callable[[], Any]) -> None:
    """The work ends, although the stranger keeps its locks."""
    waiting = in_thread(work)
    waiting.join(DEADLINE_SECONDS)
    is_waiting = waiting.is_alive()
    stranger.execute("SELECT pg_advisory_unlock_all()")
    waiting.join()
    assert not is_waiting


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_appends_do_not_wait_for_who_holds_the_lock_that_they_share(stranger, isolation):
    """They waited for it without end, and every role that may connect can hold it."""
    append()
    hold(stranger, append_key())
    made: list[int] = []

    def appends() -> None:
        made.extend(append())
        with transaction.atomic():
            connection.cursor().execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            made.extend(append())
            with stream().reserve(2) as reservation, suppress(KeyError):
                with transaction.atomic():  # whose end releases the locks that it took
                    made.extend(append())
                    raise KeyError
                reservation.write(*(CacheInvalidation(cache_name="x", keys=["k"]) for _ in range(2)))
            made.extend(append())

    goes_on(stranger, appends)
    assert len(made) == 4 and made == sorted(made)
    wait_for_linear(made[-1])


def test_a_transaction_takes_one_further_lock_however_much_it_appends(stranger):
    append()
    hold(stranger, append_key())
    with transaction.atomic(), connection.cursor() as cursor:
        for _ in range(20):
            append()
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert cursor.fetchone() == (1,)


def test_a_transaction_without_the_common_lock_is_found_open(stranger, monkeypatch):
    """Who retires its writer, or takes its name, would else pass its fact."""
    append()
    hold(stranger, append_key())
    with transaction.atomic():
        append()
        stranger.execute("SELECT pg_advisory_unlock_all()")
        current_writer().close()
        with session() as cursor:
            assert resolve_writer(cursor, "master", "test") == []
            with pytest.raises(WriterBusy, match=f"database session {connection.connection.info.backend_pid} "):
                lease.wait_for_open_transactions(cursor, "master", 0.05)
            monkeypatch.setattr(terminate, "YOUNG_SECONDS", 0.0)
            [found] = terminate.holding(cursor, "master").transactions
            assert found.pid == connection.connection.info.backend_pid
    with session() as cursor:
        assert resolve_writer(cursor, "master", "test")


@pytest.mark.parametrize("shared", ["", "_shared"])
def test_a_dead_writer_is_retired_whoever_holds_the_lock_of_its_appends(stranger, shared):
    append()
    stranger.execute(f"SELECT pg_advisory_lock{shared}(%s)", [append_key()])
    current_writer().close()
    with session() as cursor:
        lease.wait_for_open_transactions(cursor, "master", 0.05)
        assert resolve_writer(cursor, "master", "test")


def test_a_role_that_may_become_the_writer_counts(stranger):
    """A role without INHERIT has the rights of the writer only after SET ROLE, as Django's ``assume_role`` sends it."""
    append()
    with connection.cursor() as cursor:
        stranger.execute("SELECT current_user")
        role = stranger.fetchone()[0]
        cursor.execute(
            f"CREATE ROLE writes_{os.getpid()}; GRANT INSERT ON streams_streamposition TO writes_{os.getpid()}"
        )
        cursor.execute(f"ALTER ROLE {role} NOINHERIT; GRANT writes_{os.getpid()} TO {role}")
        try:
            stranger.execute("SELECT pg_advisory_lock_shared(%s)", [append_key()])
            with session() as other:
                assert append_lock.is_held(other, append_key())
        finally:
            cursor.execute(f"DROP OWNED BY writes_{os.getpid()}; DROP ROLE writes_{os.getpid()}")


def test_an_append_waits_for_an_older_process_that_retires_its_writer():
    """Older processes raise the lease only under the lock: an append that did not wait would be passed."""
    append()
    with session() as older:
        older.execute("SELECT pg_advisory_lock(%s)", [append_key()])
        waiting = in_thread(append)
        wait_until(waiting_sessions)
        older.execute("SELECT pg_advisory_unlock_all()")
        waiting.join()


def test_the_page_names_the_transaction_whose_row_an_append_waits_for(settings):
    settings.REPLSITE_BLOCKED_AFTER_SECONDS = 0.3
    stream = registry.get("presence")
    stream.append(Presence(user_id="@a:x", state="online"))
    with session() as holder:
        holder.execute("BEGIN")
        holder.execute("SELECT pg_backend_pid() FROM streams_keylock FOR UPDATE")
        [process] = {row[0] for row in holder.fetchall()}
        waiting = in_thread(lambda: stream.append(Presence(user_id="@a:x", state="busy")))
        try:
            sentence = blocked_sentence("presence")
        finally:
            holder.execute("ROLLBACK")
            waiting.join()
    assert f"It waits for a lock that database session {process} of role " in sentence


def test_work_that_one_session_may_do_names_who_keeps_it_out(stranger, tmp_path):
    """The error said that the work is being done, and nothing of the session that did nothing but hold the lock."""
    with session() as cursor:
        cursor.execute("SELECT hashtextextended('replsite.export:' || %s, 0)", [str(tmp_path)])
        keys = [driver.trim_key(cursor, OTHER), cursor.fetchone()[0], key_of("replsite.purge:!a:x")]
        process = {hold(stranger, key) for key in keys}.pop()
        named = rf"\(database session {process} "
        with pytest.raises(TrimBusy, match=named), _only_one(cursor, registry.get(OTHER)):
            pass
    with pytest.raises(PurgeRefused, match=named), purge_lock("!a:x", "default"):
        pass
    with pytest.raises(ExportRunning, match=named), _snapshot(tmp_path, "default"):
        pass
