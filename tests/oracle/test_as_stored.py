"""Every stored room through ``persist`` with the server's own verdicts: each row is that of one import of the whole room."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from events.columns import EVENT_COLUMNS
from events.format.parsing import ParsedEvent
from events.models import Event
from events.persist import batch as storing
from events.persist.batch import Incoming
from events.persist.gap_filling import resolve_room
from events.persist.next_rows import Accepted
from events.visibility.ranges import in_order
from tests.oracle.answers import history, parsed
from tests.support.made_rooms import BOB, public_room
from tests.support.persisted_rooms import current_state, extremities, gaps, ranges
from tests.support.room_data import ROOM_NAMES, event_lines
from tests.support.room_results import RoomResult, room_history

pytestmark = pytest.mark.django_db(transaction=True)

LARGE = [pytest.mark.scenario, pytest.mark.timeout(1_800)]
ROOMS = [pytest.param(room, marks=LARGE) if room == "large_v10" else room for room in ROOM_NAMES]
COLUMNS = "event_id", "outlier", "rejected_reason", "soft_failed", "redacted_by", "state_unresolved"


def stored_lines(room: str) -> list[Incoming]:
    """The events as they came: the live ones by their places, and the old ones behind them, the newest first."""
    found = []
    for line, event in zip(event_lines(room), parsed(room), strict=True):
        told = json.loads(line)
        place = told["stream_ordering"]
        verdict = told["rejected_reason"], told["soft_failed"]
        found.append(
            Incoming(
                event.json, event.room_version, event.event_id, told["outlier"], place < 0,
                verdict=verdict, backfilled_at=min(place, -1),
            )
        )  # fmt: skip
    old = [event for event in found if event.backfilled]
    live = [event for event in found if not event.backfilled]
    return [*live, *sorted(old, key=lambda event: -event.backfilled_at)]


def store(given: list[Incoming], batch: int) -> None:
    for first in range(0, len(given), batch):
        outcome = storing.persist(
            given[first : first + batch], verified=True, history_of="localhost:19201", as_stored=True
        )
        assert outcome.refused == []
        for room_id in outcome.unfinished_rooms:
            resolve_room(room_id, accepts=Accepted(unproven=True, as_stored=True))


def assert_rows_of(wanted: RoomResult) -> None:
    rows = [dict(zip(EVENT_COLUMNS, row, strict=True)) for row in wanted.events]
    stored = {row[0]: row for row in Event.objects.values_list(*COLUMNS)}
    assert stored == {row["event_id"]: tuple(row[name] for name in COLUMNS) for row in rows}
    room_id = wanted.room_id
    assert extremities(room_id) == sorted(wanted.forward_extremities)
    assert gaps(room_id) == sorted(wanted.backward_extremities)
    assert current_state(room_id) == {(kind, key): event_id for kind, key, event_id, _ in wanted.current_state}
    ids = [row["event_id"] for row in rows]
    shown = [
        (row.user_id, row.kind, ids[row.first], None if row.last is None else ids[row.last])
        for row in in_order(wanted.visibility)
    ]
    assert ranges(room_id) == sorted(shown, key=str)
    assert list(Event.objects.order_by("stream_ordering").values_list("event_id", flat=True)) == ids


@pytest.mark.parametrize("batch", [1, 30, 500])
@pytest.mark.parametrize("room", ROOMS)
def test_rows_are_those_of_an_import(room, batch):
    store(stored_lines(room), batch)
    assert_rows_of(history(room))


def as_incoming(event: ParsedEvent) -> Incoming:
    return Incoming(
        event.json, event.room_version, event.event_id, event.outlier, event.backfilled,
        verdict=(event.rejected_reason, event.soft_failed), backfilled_at=event.stream_ordering or -1,
    )  # fmt: skip


def joined_from_elsewhere() -> tuple[list[ParsedEvent], list[ParsedEvent]]:
    """A room as a server has it that joined by another one: (outliers, join and talk above a gap), (what comes by backfill)."""
    made = public_room()
    state = [replace(event, outlier=True) for event in made.events]
    old = [made.message(), made.topic("old"), made.message()]
    here = [made.member(BOB, "join"), made.message(sender=BOB), made.topic("new"), made.message()]
    return [*state, *here], [replace(event, stream_ordering=-number) for number, event in enumerate(reversed(old), 2)]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_a_room_that_was_joined_from_elsewhere(batch):
    live, old = joined_from_elsewhere()
    store([as_incoming(event) for event in live], batch)
    assert_rows_of(room_history(live))
    store([as_incoming(event) for event in old], batch)
    assert_rows_of(room_history([*sorted(old, key=lambda event: event.stream_ordering), *live]))
