"""The rows that are made of every stored room: each event has a state or is marked, whatever order the lines came in."""

import pytest

from events.columns import EVENT_COLUMNS
from events.format.parsing import parse_line
from tests.oracle.answers import history
from tests.support.room_data import ROOM_NAMES, event_lines
from tests.support.room_results import room_history


def column(result, name):
    at = EVENT_COLUMNS.index(name)
    return {row[0]: row[at] for row in result.events}


@pytest.mark.parametrize(
    "room", [pytest.param(name, marks=pytest.mark.scenario if name == "large_v10" else ()) for name in ROOM_NAMES]
)
def test_order_of_arrival_does_not_change_what_is_known(room):
    forward = history(room)
    lines = event_lines(room)
    # In blocks: of the whole large room in reverse, visibility alone has 700,000 rows, since most events come before their state.
    block = 200 if len(lines) > 5_000 else len(lines)
    backward = room_history(
        [parse_line(line) for at in range(0, len(lines), block) for line in reversed(lines[at : at + block])]
    )
    assert {event_id for event_id, _ in forward.event_groups} == {event_id for event_id, _ in backward.event_groups}
    assert sorted(forward.forward_extremities) == sorted(backward.forward_extremities)
