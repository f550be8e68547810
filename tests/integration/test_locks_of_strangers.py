"""Advisory locks that a role that may only read holds: what waits for them says so, and stops nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streams import registry
from streams.db import driver
from streams.errors import SequenceBusy, WriterBusy
from streams.maintenance import check
from streams.models import PushRuleChange
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
    assert OTHER in str(error) and f"database session {process}" in str(error)
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
