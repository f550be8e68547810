"""Advisory locks that a role that may only read holds: what waits for them says so, and stops nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from events.errors import PurgeRefused
from events.maintenance.purge_lock import purge_lock
from pipeline.errors import ExportRunning
from pipeline.export.write_tables import _snapshot
from pipeline.models import Job, JobState
from replsite.history.sampler import Sampler
from replsite.notices.sender import NoticeSender
from streams import registry
from streams.catalog.models import Presence, TypingUser
from streams.db import driver
from streams.db.schema_mark import marked_lock
from streams.errors import TrimBusy, WriterBusy
from streams.homeserver.typing import expire_typing, set_typing
from streams.jobs.rows import killed_jobs
from streams.maintenance.trim import _only_one
from tests.support.forging import forger
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import in_thread, session

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


def test_a_sender_of_notices_that_a_stranger_keeps_out_says_so(stranger, caplog):
    """Nobody was told that the site was wrong, and nothing said so."""
    caplog.set_level("INFO", "replsite.notices.sender")
    process = hold(stranger, key_of("replsite.notices"))
    sender = NoticeSender()
    sender.step()
    assert "notices.paused" in caplog.text and f"database session {process} " in caplog.text
    stranger.execute("SELECT pg_advisory_unlock_all()")
    sender.step()
    assert "notices.go_on" in caplog.text
    sender.close()


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


def goes_on(stranger: Any, work: Callable[[], Any]) -> None:
    """The work ends, although the stranger keeps its locks."""
    waiting = in_thread(work)
    waiting.join(DEADLINE_SECONDS)
    is_waiting = waiting.is_alive()
    stranger.execute("SELECT pg_advisory_unlock_all()")
    waiting.join()
    assert not is_waiting


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
