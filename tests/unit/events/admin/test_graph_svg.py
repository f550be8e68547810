"""The drawn graph of a room: events above what they build on, lanes for forks, bounds for monsters."""

import random
import re

import pytest

from events.admin.graph_svg import MOST_LANES, Kind, PictureEvent, draw


def event(name, *prevs, kind=Kind.MESSAGE, depth=None, **more):
    depth = int(name.strip("$")) if depth is None else depth
    return PictureEvent(name, prevs, kind, (depth, depth), **more)


def drawn(*events, missing=()):
    picture = draw(events, missing)
    return picture, {node.event.event_id: node for node in picture.nodes}


def test_line_is_one_lane_with_the_newest_on_top():
    picture, nodes = drawn(event("$1"), event("$3", "$2"), event("$2", "$1"))
    assert [node.event.event_id for node in picture.nodes] == ["$3", "$2", "$1"]
    assert {node.lane for node in picture.nodes} == {0} and picture.lanes == 1
    assert len(picture.lines) == 2 and all("C" not in line for line in picture.lines)
    assert nodes["$3"].y < nodes["$2"].y < nodes["$1"].y < picture.height


def test_fork_and_merge_have_two_lanes_that_end_in_one():
    picture, nodes = drawn(event("$1"), event("$2", "$1"), event("$3", "$1"), event("$4", "$2", "$3"))
    assert {nodes["$2"].lane, nodes["$3"].lane} == {0, 1} and nodes["$1"].lane == nodes["$4"].lane == 0
    assert picture.lanes == 2 and len(picture.lines) == 4
    assert picture.summary == "1 fork, 1 merge"


def test_claimed_depth_does_not_turn_the_graph_over():
    picture, _ = drawn(event("$1", depth=5000), event("$2", "$1", depth=1))
    assert [node.event.event_id for node in picture.nodes] == ["$2", "$1"]


def test_what_is_not_in_the_picture_is_counted_and_has_a_stub():
    _, nodes = drawn(event("$9", "$older", "$gone"), event("$8", "$9"), missing={"$gone"})
    assert (nodes["$9"].older, nodes["$9"].missing, bool(nodes["$9"].stub)) == (1, 1, True)
    assert (nodes["$8"].older, nodes["$8"].missing, nodes["$8"].stub) == (0, 0, "")


def test_events_in_a_circle_are_drawn_once_each():
    picture, _ = drawn(event("$1", "$2"), event("$2", "$1"), event("$3", "$3"))
    assert sorted(node.event.event_id for node in picture.nodes) == ["$1", "$2", "$3"]


def test_ten_thousand_prev_events_are_few_lines_and_a_number():
    prevs = [f"${number}" for number in range(10_000)]
    picture, nodes = drawn(*(event(name) for name in prevs[:60]), event("$20000", *prevs))
    assert len(picture.lines) <= 20 and picture.lanes <= MOST_LANES
    assert nodes["$20000"].older == 10_000 - 20


def test_summary_counts_what_is_special():
    picture, _ = drawn(
        event("$1", kind=Kind.STATE),
        event("$2", "$1", kind=Kind.SOFT_FAILED),
        event("$3", "$1", kind=Kind.REJECTED),
        event("$4", kind=Kind.OUTLIER),
        event("$5", "$1", is_extremity=True),
        event("$6", "$1", is_extremity=True),
    )
    assert picture.summary == "2 forward extremities, 1 fork, 1 soft-failed, 1 rejected, 1 outlier"
    assert drawn(event("$1"))[0].summary == "one line of events" and drawn()[0].nodes == []


@pytest.mark.parametrize("seed", range(20))
def test_no_line_runs_through_another_event(seed):
    chosen, events = random.Random(seed), []
    for number in range(1, 51):
        pool = [event.event_id for event in events[-6:]]
        events.append(event(f"${number}", *chosen.sample(pool, min(len(pool), chosen.randint(0, 3)))))
    picture = draw(events)
    if picture.lanes >= MOST_LANES:
        return
    places = {(node.x, node.y) for node in picture.nodes}
    for line in picture.lines:
        straight = re.fullmatch(r"M(\d+) (\d+)(?:V(\d+)|C\d+ \d+ \d+ \d+ (\d+) (\d+))?(?:V(\d+))?(?:V(\d+)|C.*)?", line)
        assert straight, line
        x = int(straight[4] or straight[1])
        first, last = int(straight[3] or straight[5]), int(straight[6] or 0)
        assert not {(x, y) for y in range(first + 1, last)} & places, line
    rows = {node.event.event_id: node.row for node in picture.nodes}
    assert all(rows[prev] > rows[e.event_id] for e in events for prev in e.prev_event_ids)
    assert len(places) == len(events)
