"""Pages of every stored room as users read them, against the pages of a real server."""

import pytest

from events.errors import NotReadable
from events.reading.pages import OLDEST, timeline
from tests.oracle.answers import parsed
from tests.support.room_data import ROOM_NAMES, oracle
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db

AFTER_LEAVE = {("@vwa2:localhost:19201", "$eJogZELgDbSDZfz2D26Czhz8FI4exmkm_0LaxyuXPaY")}
"""Came after the leave of the one who reads, at a place before it (docs/reference/differences.md)."""


def walked(room_id, user_id, back, limit, most):
    """All that the user is given, page by page; a page that is empty but has an end is not the last."""
    found, token = [], None if back else OLDEST
    while True:
        page = timeline(room_id, user_id, limit, **{"before" if back else "after": token})
        found += [event.event_id for event in page.events]
        token = page.end
        if token is None or len(found) >= most:
            return found


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_pages_are_the_real_servers(room):
    """Their pages have gaps where ours are full, so what all pages give together is compared, to where theirs end."""
    events = parsed(room)
    store_room(events)
    room_id = events[-1].room_id
    rows = [row for row in oracle(room, "pagination") if row["kind"] == "messages"]
    for row in rows:
        back = row["dir"] == "b"
        if row["pages"][0].get("status") == 403:
            with pytest.raises(NotReadable):
                timeline(room_id, row["user_id"])
            continue
        theirs = [event_id for page in row["pages"] for event_id in page["chunk"]]
        ours = walked(room_id, row["user_id"], back, row["limit"], len(theirs) + 50)
        theirs = [event_id for event_id in theirs if (row["user_id"], event_id) not in AFTER_LEAVE]
        ended = row["pages"][-1].get("end") is None
        assert ours[: len(theirs)] == theirs and (not ended or len(ours) == len(theirs)), (row["user_id"], row["dir"])
    assert len(rows) >= 5
