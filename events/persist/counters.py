"""Counts the events that this process stores, for metrics.

The events are counted after the commit. The number of labels is bounded: event types that the specification does not
define count as ``other``.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

from state.groups.deltas import HOPS_LIMIT

if TYPE_CHECKING:
    from events.persist.next_rows import RoomChanges

EVENTS = Counter("replsite_events_persisted", "Events that were stored, by where their sender lives", ["origin"])
EVENTS_BY_TYPE = Counter(
    "replsite_events_persisted_by_type", "Events that were stored, by type and by where their sender lives",
    ["type", "origin"],
)  # fmt: skip
GROUPS = Counter(
    "replsite_state_groups_written",
    "State groups for new events: delta or full where one was written, reused where the event has that of another",
    ["kind"],
)
HOPS = Histogram(
    "replsite_state_chain_hops",
    f"Chains that reading a new state group takes besides its own; at most {HOPS_LIMIT}",
    buckets=(0, 1, 2, 3, 5, 8, 13, HOPS_LIMIT),
)
MEASURES = (EVENTS, EVENTS_BY_TYPE, GROUPS, HOPS)

#: Types that become labels. Senders may use any other type.
_KNOWN_TYPES = frozenset(
    {
        "m.call.answer", "m.call.candidates", "m.call.hangup", "m.call.invite", "m.key.verification.request",
        "m.poll.end", "m.poll.response", "m.poll.start", "m.reaction", "m.room.aliases", "m.room.avatar",
        "m.room.canonical_alias", "m.room.create", "m.room.encrypted", "m.room.encryption", "m.room.guest_access",
        "m.room.history_visibility", "m.room.join_rules", "m.room.member", "m.room.message", "m.room.name",
        "m.room.pinned_events", "m.room.power_levels", "m.room.redaction", "m.room.server_acl",
        "m.room.third_party_invite", "m.room.tombstone", "m.room.topic", "m.space.child", "m.space.parent", "m.sticker",
    }
)  # fmt: skip


def count_stored(stored: Iterable[RoomChanges], server_name: str) -> None:
    events, groups = Counts[tuple[str, str]](), Counts[str]()
    for changes in stored:
        for event in changes.events:
            origin = "local" if event.sender.partition(":")[2] == server_name else "remote"
            events[event.type if event.type in _KNOWN_TYPES else "other", origin] += 1
        for is_full, hops in changes.new_groups:
            groups["full" if is_full else "delta"] += 1
            HOPS.observe(hops)
        groups["reused"] += changes.reused_groups
    for (kind, origin), number in events.items():
        _labelled(EVENTS, origin).inc(number)
        _labelled(EVENTS_BY_TYPE, kind, origin).inc(number)
    for kind, number in groups.items():
        if number:
            _labelled(GROUPS, kind).inc(number)


@cache
def _labelled(metric: Counter, *labels: str) -> Counter:
    return metric.labels(*labels)
