"""Finds the depth below which each room may be purged, by ``m.room.retention`` and the site's settings.

Expired messages are hidden from users at once (``events.visibility.access``). A later purge deletes the expired
messages. Expired messages of this server are deleted only if the purge includes messages of this server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db import connections

from events.format.strict_json import decode_stored
from events.maintenance.purge_history import count_left_behind, deepest_extremity, find_time_cut
from events.visibility.access import max_lifetime_ms
from streams.conf import stream_settings

__all__ = ["RetentionCut", "retention_cuts"]

_ROOMS_PER_QUERY = 1_000
_POLICIES = """
SELECT room.room_id, policy.event_id, policy.json FROM events_room room LEFT JOIN LATERAL (
    SELECT event_id, j.json FROM events_currentstate c JOIN events_event e USING (event_id)
    LEFT JOIN events_eventjson j USING (event_id)
    WHERE c.room_id = room.room_id AND c.type = 'm.room.retention' AND c.state_key = '' AND e.redacted_by IS NULL
) AS policy ON true
WHERE room.room_id > %s ORDER BY room.room_id LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class RetentionCut:
    """What has expired in a room. A purge below ``depth`` deletes it, except for what ``left`` counts.

    A depth of 0 deletes nothing. ``left`` is the number of expired messages that stay, and ``why`` the reason. ``left``
    is null if it is not known.
    """

    room_id: str
    depth: int
    left: int | None = 0
    why: str = ""


def retention_cuts(now_ms: int, using: str) -> Iterator[RetentionCut]:
    """Yields a cut for each room with events that have expired at ``now_ms``, in ascending order of room IDs.

    A purge below this depth keeps the last expired event and the room's deepest forward extremity. Rooms without forward
    extremities are left out.
    """
    after = ""
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(_POLICIES, [after, _ROOMS_PER_QUERY])
            rows = cursor.fetchall()
        if not rows:
            return
        after = rows[-1][0]
        for room_id, event_id, policy in rows:
            if (cut := _cut(room_id, event_id, policy, now_ms, using)) is not None:
                yield cut


def _cut(room_id: str, event_id: str | None, policy: memoryview | None, now_ms: int, using: str) -> RetentionCut | None:
    if event_id is not None and (policy is None or decode_stored(bytes(policy)) is None):
        # What is deleted does not come back, so the site's default is not taken in place of what the room may say.
        return RetentionCut(room_id, 0, None, f"the stored JSON of its policy {event_id} is damaged")
    lifetime = max_lifetime_ms(None if policy is None else bytes(policy), stream_settings())
    deepest = deepest_extremity(room_id, using)
    # Messages are kept for ever or since before 1970, or the room has no forward extremity.
    if lifetime is None or lifetime >= now_ms or deepest is None:
        return None
    found = find_time_cut(room_id, now_ms - lifetime, using)
    # A cut above the deepest forward extremity would be refused (``check_forward_extremities``).
    depth, last = min(found.depth, deepest), min(found.last, deepest)
    if depth <= 0 and last <= 0:
        return None
    if found.kept is None or not (left := count_left_behind(room_id, now_ms - lifetime, (depth, last - 1), using)):
        return RetentionCut(room_id, depth)
    return RetentionCut(room_id, depth, left, f"{found.kept} below them, at depth {found.depth}, has not expired")
