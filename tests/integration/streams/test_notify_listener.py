"""A listener whose work fails: it listens on, works again, and says why in the right tone."""

from __future__ import annotations

from contextlib import closing

import pytest

from streams.db import driver
from streams.reading.notify import NotifyListener
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Listener(NotifyListener[str]):
    def parse(self, heard):
        return [payload for _, payload in heard]


def end_its_own_session():
    with closing(driver.direct_connection(application_name="test")) as own, own.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def divide_by_zero():
    return 1 // 0


@pytest.mark.parametrize(
    ("fault", "event", "level"),
    [
        (end_its_own_session, "notifications.database_lost", "WARNING"),
        (divide_by_zero, "notifications.callback_failed", "ERROR"),
    ],
)
def test_a_lost_session_is_a_warning_and_a_defect_an_error(fault, event, level, caplog):
    calls = []

    def on_heard(heard):
        calls.append(heard)
        if len(calls) == 1:
            fault()

    listener = Listener("replsite_test_listener", on_heard, None, "of a test")
    listener.start()
    try:
        wait_until(lambda: len(calls) > 1, what="it works again")
    finally:
        listener.stop()
    assert calls[1] == [], "everything is read anew"
    told = [record for record in caplog.records if isinstance(record.msg, dict) and record.msg["event"] == event]
    assert [record.levelname for record in told] == [level]
    assert bool(told[0].exc_info or told[0].msg.get("exception") or told[0].msg.get("exc_info")) == (level == "ERROR")
