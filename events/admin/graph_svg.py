"""Computes the layout of a room's latest events as a graph: rows, lanes and lines.

Each event has a row. The newest event is on top, and each event is above its prev events. A lane is a column in which a
line runs down to an earlier event. Read from the top, several lanes begin at an event that merges forks, and end at the
event at which the room forked. This module only computes positions, in SVG units. The caller chooses shapes and words.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["MOST_LANES", "Kind", "Node", "Picture", "PictureEvent", "draw"]

MOST_LANES = 16
"""If more lines run side by side, the additional ones share the last lane."""
_LINES_PER_EVENT = 20
_ROW, _LANE, _MARGIN = 30, 20, 18


class Kind(StrEnum):
    """The kind of an event in the picture. Each has its own shape and word."""

    MESSAGE = "message"
    STATE = "state"
    SOFT_FAILED = "soft-failed"
    REJECTED = "rejected"
    OUTLIER = "outlier"


@dataclass(frozen=True, slots=True)
class PictureEvent:
    """An event to be drawn.

    ``place`` is (topological, stream). Events that the graph leaves unordered are sorted by ``place``.
    """

    event_id: str
    prev_event_ids: Sequence[str]
    kind: Kind
    place: tuple[int, int]
    is_extremity: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A drawn event.

    ``older`` is the number of the event's prev events that are stored, but to which no line is drawn. ``missing`` is
    the number of the event's prev events that are not stored.
    """

    event: PictureEvent
    row: int
    lane: int
    older: int
    missing: int

    @property
    def x(self) -> int:
        """The horizontal centre of the shape."""
        return _x(self.lane)

    @property
    def y(self) -> int:
        """The vertical centre of the shape."""
        return _y(self.row)

    @property
    def stub(self) -> str:
        """The SVG path of a short line down, which stands for prev events without a line of their own. May be empty."""
        return f"M{self.x} {self.y}v{_ROW // 2}" if self.older or self.missing else ""


@dataclass(frozen=True, slots=True)
class Picture:
    """The finished layout: nodes from top to bottom, the lines between them as SVG paths, and the number of lanes."""

    nodes: Sequence[Node]
    lines: Sequence[str]
    lanes: int

    @property
    def words_x(self) -> int:
        """The left edge of the words beside the graph."""
        return _x(self.lanes)

    @property
    def height(self) -> int:
        """The height of the drawing."""
        return _y(len(self.nodes))

    @property
    def summary(self) -> str:
        """A description of the graph in words, for screen readers."""
        ids = {node.event.event_id for node in self.nodes}
        above: dict[str, int] = {}
        for node in self.nodes:
            for prev in set(node.event.prev_event_ids) & ids:
                above[prev] = above.get(prev, 0) + 1
        counts = {
            "forward extremity|forward extremities": sum(node.event.is_extremity for node in self.nodes),
            "fork": sum(number > 1 for number in above.values()),
            "merge": sum(len(node.event.prev_event_ids) > 1 for node in self.nodes),
            "soft-failed": sum(node.event.kind is Kind.SOFT_FAILED for node in self.nodes),
            "rejected": sum(node.event.kind is Kind.REJECTED for node in self.nodes),
            "outlier": sum(node.event.kind is Kind.OUTLIER for node in self.nodes),
        }
        return ", ".join(_counted(number, word) for word, number in counts.items() if number) or "one line of events"


def draw(events: Sequence[PictureEvent], missing: Collection[str] = ()) -> Picture:
    """Returns the layout of the events. ``missing`` are prev events that are not stored.

    Takes time in proportion to events and edges.
    """
    order = _order(events)
    rows = {event.event_id: row for row, event in enumerate(order)}
    lanes = _Lanes(rows)
    nodes = [lanes.place(event, row, set(missing)) for row, event in enumerate(order)]
    places = {node.event.event_id: node for node in nodes}
    lines = [_path(places[above], lane, places[below]) for above, lane, below in lanes.lines]
    return Picture(nodes, lines, lanes.used)


def _order(events: Sequence[PictureEvent]) -> list[PictureEvent]:
    """Returns the events from the top row to the bottom row, each before its prev events.

    Events that the graph leaves unordered are sorted by descending ``PictureEvent.place``. If all events that remain
    are in cycles or below cycles, the event with the highest ``place`` comes next.
    """
    by_id = {event.event_id: event for event in events}
    above = dict.fromkeys(by_id, 0)
    for event in by_id.values():
        for prev in set(event.prev_event_ids) & by_id.keys():
            above[prev] += 1
    left = dict(by_id)
    ready = [(*_descending(event), event.event_id) for event in by_id.values() if not above[event.event_id]]
    heapq.heapify(ready)
    found: list[PictureEvent] = []
    while left:
        event_id = heapq.heappop(ready)[-1] if ready else min(left, key=lambda name: _descending(left[name]))
        if event_id not in left:  # it got its row before, when a cycle was broken
            continue
        event = left.pop(event_id)
        found.append(event)
        for prev in set(event.prev_event_ids) & left.keys():
            above[prev] -= 1
            if not above[prev]:
                heapq.heappush(ready, (*_descending(left[prev]), prev))
    return found


def _descending(event: PictureEvent) -> tuple[int, int]:
    return -event.place[0], -event.place[1]


class _Lanes:
    """The lanes in use at the current row: for each lane, the event to which its line leads."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        self._rows = rows
        self._taken: dict[int, str] = {}
        self.lines: list[tuple[str, int, str]] = []
        self.used = 1

    def place(self, event: PictureEvent, row: int, missing: Collection[str]) -> Node:
        """Puts the event into the row ``row``, and returns its node.

        Ends the lines that lead to the event, and begins lines to its prev events.
        """
        mine = sorted(lane for lane, target in self._taken.items() if target == event.event_id)
        lane = mine[0] if mine else self._free()
        for ended in mine:
            del self._taken[ended]
        self.used = max(self.used, lane + 1)
        below = [prev for prev in dict.fromkeys(event.prev_event_ids) if self._rows.get(prev, -1) > row]
        for prev in below[:_LINES_PER_EVENT]:
            self._begin(event.event_id, lane, prev)
        outside = [prev for prev in dict.fromkeys(event.prev_event_ids) if prev not in self._rows]
        gone = sum(prev in missing for prev in outside)
        drawn_not = max(len(below) - _LINES_PER_EVENT, 0)
        return Node(event, row, lane, len(outside) - gone + drawn_not, gone)

    def _begin(self, event_id: str, own: int, prev: str) -> None:
        # The first line goes down in the event's own lane. Others join a lane that leads to the same event, or take a free one.
        lane = (
            own
            if own not in self._taken
            else next((taken for taken, target in self._taken.items() if target == prev), self._free())
        )
        self._taken.setdefault(lane, prev)
        self.used = max(self.used, lane + 1)
        self.lines.append((event_id, lane, prev))

    def _free(self) -> int:
        return next((lane for lane in range(MOST_LANES - 1) if lane not in self._taken), MOST_LANES - 1)


def _path(above: Node, lane: int, below: Node) -> str:
    """Returns the SVG path of a line from one event down to another.

    The line runs straight down in its lane, and bends only next to the two events.
    """
    start, end, x = (above.x, above.y), (below.x, below.y), _x(lane)
    if below.row == above.row + 1:
        return f"M{start[0]} {start[1]}" + _bend(start, end)
    first, last = (x, above.y + _ROW), (x, below.y - _ROW)
    return f"M{start[0]} {start[1]}{_bend(start, first)}V{last[1]}{_bend(last, end)}"


def _bend(start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return f"V{end[1]}"
    middle = (start[1] + end[1]) // 2
    return f"C{start[0]} {middle} {end[0]} {middle} {end[0]} {end[1]}"


def _x(lane: int) -> int:
    return _MARGIN + lane * _LANE


def _y(row: int) -> int:
    return _MARGIN + row * _ROW


def _counted(number: int, word: str) -> str:
    one, _, many = word.partition("|")
    plural = many or (one if one in (Kind.SOFT_FAILED, Kind.REJECTED) else f"{one}s")
    return f"{number} {one if number == 1 else plural}"
