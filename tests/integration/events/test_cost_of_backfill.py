"""A backfilled event asks as many queries in a room of 200 members as in one of 20."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.integrity.repair import check_room
from events.persist.room_cache import clear_caches
from tests.support.made_rooms import ALICE, public_room
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.queries import sent

pytestmark = pytest.mark.django_db(transaction=True)


def asked(members: int) -> int:
    made = public_room("11", f"!with-{members}:a.test")
    for number in range(members):
        made.member(f"@user-{number}:a.test", "join")
    made.member("@gone:a.test", "leave", sender=ALICE)
    persist_all(made.events, 500)
    base = made.events[-1]
    made.message()
    persist_all([made.events[-1]])
    old = made.message(prev=[base], sender="@user-3:a.test")
    clear_caches()
    with CaptureQueriesContext(connection) as seen:
        assert persist([incoming(old, backfilled=True)]).refused == []
    assert check_room(made.room_id).clean
    return len(sent(seen))


def test_a_backfilled_event_reads_no_member_by_itself():
    asked(10)  # what a process does once
    assert asked(200) == asked(20)
