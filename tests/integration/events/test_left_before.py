"""Who left before the first live event that is stored does not see that event, however the ranges came to be."""

import pytest
from msgspec.structs import replace

from events.integrity.repair import check_room, resync_room
from events.maintenance.purge_batch import PurgeRequest
from events.models import Event, EventVisibility
from events.operations.purge_history import purge_events
from events.persist.rebuild_visibility import rebuild_visibility, recomputed_ranges
from tests.integration.events.test_visible_sql import by_join, by_view
from tests.support.made_rooms import BOB, public_room
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.ranges import stored_ranges
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def made():
    """Bob came and went, and the history is shared."""
    made = public_room("11", "!before:a.test")
    made.member(BOB, "join")
    made.message()
    made.member(BOB, "leave")
    return made


def assert_unseen(made, *events):
    ids = {event.event_id for event in events}
    assert not ids & by_join(BOB, [made.room_id]).keys() and not ids & by_view(BOB, made.room_id).keys()
    assert stored_ranges(made.room_id) == recomputed_ranges(made.room_id)
    report = check_room(made.room_id)
    assert report.clean, report.differences


def test_ranges_that_are_made_anew_after_a_purge(made):
    made.message()
    left = [made.message(), made.message()]
    persist_all(made.events)
    for _ in purge_events(PurgeRequest(made.room_id, left[0].depth, True, "default")):
        pass
    assert rebuild_visibility(made.room_id)
    assert_unseen(made, *left)


def test_a_live_event_on_backfilled_history(made):
    persist([incoming(event, backfilled=True) for event in made.events])
    first = made.message()
    persist([incoming(first)])
    assert_unseen(made, first)
    assert made.events[-3].event_id in by_join(BOB, [made.room_id])


def test_an_import_of_backfilled_history(made):
    made.events = [replace(event, stream_ordering=number - 100) for number, event in enumerate(made.events)]
    first = made.message()
    store_room(made.events)
    assert_unseen(made, first)
    assert made.events[-3].event_id in by_join(BOB, [made.room_id])


def test_a_cut_that_was_stored_at_the_first_live_event_is_found_and_mended(made):
    """As it was stored before the cut of such users was put below all live events."""
    persist([incoming(event, backfilled=True) for event in made.events])
    first = made.message()
    persist([incoming(first)])
    position = Event.objects.get(event_id=first.event_id).stream_ordering
    EventVisibility.objects.filter(room_id=made.room_id, user_id=BOB, kind="cut").update(first=position)
    assert first.event_id in by_join(BOB, [made.room_id])
    assert resync_room(made.room_id, "visibility").before.of("visibility") > 0
    assert_unseen(made, first)
