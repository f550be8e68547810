"""A role with the grants that docs/how-to/read-rooms-from-another-service.md names reads rooms, and cannot write."""

import os
import re
from pathlib import Path

import pytest
from django.db import ProgrammingError, connection, transaction

from events.models import Event
from events.reading.pages import events_around, timeline, visible_to
from events.reading.timeline import state_at, topological_walk
from events.tokens.positions import current_token, token_text
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.stored_rooms import store_room
from tests.support.syncing import first, here, since

#: Roles belong to the whole server.
ROOMS_READER = f"rooms_reader_{os.getpid()}"

pytestmark = pytest.mark.django_db

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "read-rooms-from-another-service.md"


@pytest.fixture
def as_reader():
    """A room, and the role for the rest of the transaction."""
    made = MadeRoom()
    made.message()
    made.redaction(made.events[-1])
    store_room(made.events)
    current_token()  # begins the epoch, as any writer of the site has done long ago
    part = re.search(r"## What the role must(.*?)\n## ", PAGE.read_text(), re.S)[1]
    tables = re.findall(r"`([a-z]+_[a-z]+)`", part)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {ROOMS_READER}")
        cursor.execute(f"GRANT SELECT ON {', '.join(tables)} TO {ROOMS_READER}")
        cursor.execute(f"SET LOCAL ROLE {ROOMS_READER}")
    return made


def test_grants_are_enough_for_every_question(as_reader):
    made = as_reader
    message = made.events[2].event_id
    assert len(timeline(made.room_id, ALICE).events) == len(timeline(made.room_id).events) == 4
    assert timeline(made.room_id, ALICE, before=token_text(current_token())).events is not None
    assert events_around(message, ALICE).event.redacted_by == made.events[3].event_id
    assert list(visible_to(ALICE, [message])) == [message]
    assert len(list(topological_walk(made.room_id))) == 4
    assert len(state_at(message).before) == 2
    assert len(first(ALICE).rooms) == 1
    assert not since(ALICE, here())


@pytest.mark.usefixtures("as_reader")
def test_nothing_can_be_written():
    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
        Event.objects.writable().filter(event_id="$x").update(soft_failed=True)
