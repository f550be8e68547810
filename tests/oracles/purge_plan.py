"""What a purge of a room's history deletes, keeps and rewrites (pure).

Everything deeper than the cut stays. Below it state events stay as outliers, because they are needed to judge by and as state;
other events go, but those of this server only when asked. Gaps above the cut stay gaps. A state group goes when no event that
stays has it; a group that was built on one that goes is to be stored in full.

Takes time linear in events, edges and groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["PurgePlan", "PurgedEvent", "purge_plan"]


@dataclass(frozen=True, slots=True)
class PurgedEvent:
    """What the plan looks at in an event of the room. ``group`` is null without a place in the graph."""

    event_id: str
    depth: int
    prev_event_ids: tuple[str, ...]
    group: int | None
    is_state: bool
    local: bool
    outlier: bool


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What is to be done.

    ``gaps`` are all backward extremities afterwards, ``min_depth`` the depth of the first event above the new ones (0:
    there is none), or of the first event at all where nothing is purged. ``groups_looked_at`` are those of purged events.
    """

    deleted: frozenset[str]
    become_outliers: frozenset[str]
    gaps: frozenset[str]
    new_gaps: frozenset[str]
    min_depth: int
    extremities: frozenset[str]
    groups_looked_at: frozenset[int]
    groups_deleted: frozenset[int]
    groups_made_full: frozenset[int]


def purge_plan(
    events: Sequence[PurgedEvent],
    cut: int,
    extremities: Iterable[str],
    built_on: Mapping[int, int],
    *,
    delete_local: bool,
) -> PurgePlan | None:
    """The plan for everything below depth ``cut``, or null when the room would lose all its leaves.

    ``built_on`` maps a group to the one that it is a delta of. Nobody may add events to the room while a plan is made and
    carried out.
    """
    by_id = {event.event_id: event for event in events}
    extremities = frozenset(extremities)
    if max((by_id[extremity].depth for extremity in extremities if extremity in by_id), default=cut) < cut:
        return None
    purged = {
        event.event_id: event
        for event in events
        if event.depth < cut and (not event.outlier or _deletable(event, delete_local))
    }
    deleted = frozenset(event_id for event_id, event in purged.items() if _deletable(event, delete_local))
    gaps, new_gaps, min_depth = _gaps(events, by_id, purged)
    if not purged:
        min_depth = min((event.depth for event in events if not event.outlier), default=0)
    looked_at = frozenset(event.group for event in purged.values() if event.group is not None)
    groups_deleted = _groups(events, purged, looked_at, built_on)
    return PurgePlan(
        deleted=deleted,
        become_outliers=frozenset(purged) - deleted,
        gaps=gaps,
        new_gaps=new_gaps,
        min_depth=min_depth,
        extremities=extremities - frozenset(purged),
        groups_looked_at=looked_at,
        groups_deleted=groups_deleted,
        groups_made_full=frozenset(
            group for group, base in built_on.items() if base in groups_deleted and group not in groups_deleted
        ),
    )


def _deletable(event: PurgedEvent, delete_local: bool) -> bool:
    return not event.is_state and (delete_local or not event.local)


def _gaps(
    events: Sequence[PurgedEvent], by_id: Mapping[str, PurgedEvent], purged: Mapping[str, PurgedEvent]
) -> tuple[frozenset[str], frozenset[str], int]:
    """All gaps afterwards, those of them that the purge makes, and the smallest depth of an event above one of these."""
    gaps, new = set(), set()
    min_depth: int | None = None
    for event in events:
        if event.event_id in purged or event.outlier:
            continue
        for prev in event.prev_event_ids:
            if prev in purged:
                new.add(prev)
                min_depth = event.depth if min_depth is None else min(min_depth, event.depth)
            elif prev not in by_id or by_id[prev].outlier:
                gaps.add(prev)
    return frozenset(gaps | new), frozenset(new), min_depth or 0


def _groups(
    events: Sequence[PurgedEvent], purged: Mapping[str, PurgedEvent], begin: Iterable[int], built_on: Mapping[int, int]
) -> frozenset[int]:
    """Groups that no event has any more, among those that a search from ``begin`` comes to.

    From a group without events it goes on to the group below and to those built on it; a group with one ends it.
    """
    kept = {event.group for event in events if event.group is not None and event.event_id not in purged}
    beside: dict[int, list[int]] = {}
    for group, base in built_on.items():
        beside.setdefault(base, []).append(group)
        beside.setdefault(group, []).append(base)
    seen = set(begin)
    search = list(seen)
    while search:
        group = search.pop()
        if group in kept:
            continue
        for other in beside.get(group, ()):
            if other not in seen:
                seen.add(other)
                search.append(other)
    return frozenset(seen - kept)
