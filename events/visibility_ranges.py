"""Who may see which events of a linear room, as ranges (pure).

The rules are Matrix's of history visibility (world_readable, shared, invited, joined), with the viewer's membership and
the setting in the state *after* each event: of a change of either the more open side counts. They are summed
up in the kinds of ``events.models.EventVisibility``. Only rooms whose accepted events form one unbroken line can be done
this way; for others the answer is null, and nobody guesses. Time is linear in events plus ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from events.graph import is_accepted
from events.parsing import ParsedEvent

__all__ = ["VisibilityRow", "visibility_ranges"]

_OPENNESS = {"joined": 0, "invited": 1, "shared": 2, "world_readable": 3}
_ROOM_WIDE = {"world_readable": "world", "shared": "shared"}


@dataclass(frozen=True, slots=True)
class VisibilityRow:
    """One range; ``first`` and ``last`` are indexes of events, both included, ``last`` null while it is open."""

    user_id: str | None
    kind: str
    first: int
    last: int | None


@dataclass(slots=True)
class _Run:
    """A run of equal values over events ``first`` to ``last`` of the line, ``last`` null while it goes on."""

    value: str
    first: int
    last: int | None = None


def visibility_ranges(events: Sequence[ParsedEvent]) -> list[VisibilityRow] | None:
    """The ranges of a room, or null when its accepted events are not one line from the create event on."""
    indexes = [index for index, event in enumerate(events) if is_accepted(event)]
    line = [events[index] for index in indexes]
    if not _is_line(line):
        return None
    history = _history_runs(line)
    found: list[tuple[str | None, str, int, int | None]] = [
        (None, _ROOM_WIDE[run.value], run.first, run.last) for run in history if run.value in _ROOM_WIDE
    ]
    open_to_invited = [run for run in history if run.value == "invited"]
    for user_id, runs in _membership_runs(line).items():
        found += [(user_id, *row) for row in _user_rows(runs, open_to_invited)]
    return [
        VisibilityRow(user_id, kind, indexes[first], None if last is None else indexes[last])
        for user_id, kind, first, last in found
    ]


def _is_line(accepted: Sequence[ParsedEvent]) -> bool:
    if not accepted or accepted[0].type != "m.room.create" or accepted[0].prev_event_ids:
        return False
    if any(event.backfilled for event in accepted):
        return False
    return all(above.prev_event_ids == (below.event_id,) for below, above in pairwise(accepted))


def _history_runs(line: Sequence[ParsedEvent]) -> list[_Run]:
    """The history visibility over the line.

    An event that ends a world-readable or shared run for a closer one belongs to both runs, which lets nobody more in
    than the more open rule does. Every other change belongs to the new run alone (the reference does not show the change
    from invited to joined to those who are invited).
    """
    runs = [_Run("shared", 0)]
    for number, event in enumerate(line):
        if event.type != "m.room.history_visibility" or event.state_key != "":
            continue
        value = event.content.get("history_visibility")
        value = value if isinstance(value, str) and value in _OPENNESS else "shared"
        current = runs[-1]
        if value != current.value:
            closes = current.value in _ROOM_WIDE and _OPENNESS[value] < _OPENNESS[current.value]
            current.last = number if closes else number - 1
            runs.append(_Run(value, number))
    return runs


def _membership_runs(line: Sequence[ParsedEvent]) -> dict[str, list[_Run]]:
    """Per user the memberships; the event that ends one is the first of the next."""
    found: dict[str, list[_Run]] = {}
    for number, event in enumerate(line):
        if event.type != "m.room.member" or event.state_key is None:
            continue
        runs = found.setdefault(event.state_key, [])
        value = event.membership or "leave"
        if runs and runs[-1].value == value and value == "join":
            continue
        if runs:
            runs[-1].last = number
        runs.append(_Run(value, number))
    return found


def _user_rows(runs: Sequence[_Run], open_to_invited: Sequence[_Run]) -> Iterator[tuple[str, int, int | None]]:
    """(kind, first, last) of one user.

    The event that ends a membership sees what the membership saw: the more joined side counts.
    """
    cut: int | None = None
    for run, after in zip(runs, [*runs[1:], None], strict=True):
        if run.value == "join":
            yield "joined", run.first, run.last
        elif run.value == "invite":
            yield from _invited_rows(run, after, open_to_invited)
        if run.value in ("join", "invite"):
            cut = None
        elif cut is None:
            cut = run.first
    if cut is not None:
        yield "cut", cut, None


def _invited_rows(
    run: _Run, after: _Run | None, open_to_invited: Sequence[_Run]
) -> Iterator[tuple[str, int, int | None]]:
    """What an invite shows: events while invited members may read, and always the own leave that ends it."""
    start = bisect_right(open_to_invited, run.first, key=lambda other: other.first)
    for other in open_to_invited[max(start - 1, 0) :]:
        if run.last is not None and other.first > run.last:
            break
        first = max(run.first, other.first)
        ends = [last for last in (run.last, other.last) if last is not None]
        last = min(ends) if ends else None
        if last is None or first <= last:
            yield "invited", first, last
    if after is not None and after.value == "leave":
        yield "shown", after.first, after.first
