"""Finds the depth below which each room may be purged, by ``m.room.retention`` and the site's settings.

Expired messages are hidden from users at once (``events.visibility.access``). A later purge deletes the expired
messages. Expired messages of this server are deleted only if the purge includes messages of this server.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connections

from events.maintenance.purge_history import cut_at_time, deepest_extremity
from events.visibility.access import max_lifetime_ms
from streams.conf import stream_settings

__all__ = ["retention_cuts"]

_ROOMS_PER_QUERY = 1_000
_POLICIES = """
SELECT room.room_id, policy.json FROM events_room room LEFT JOIN LATERAL (
    SELECT j.json FROM events_currentstate c JOIN events_eventjson j USING (event_id)
    WHERE c.room_id = room.room_id AND c.type = 'm.room.retention' AND c.state_key = ''
) AS policy ON true
WHERE room.room_id > %s ORDER BY room.room_id LIMIT %s
"""


def retention_cuts(now_ms: int, using: str) -> Iterator[tuple[str, int]]:
    """Yields (room, depth) for each room with events that have expired at ``now_ms``, in ascending order of room IDs.

    A purge below this depth keeps the last expired event and the room's deepest forward extremity. Rooms without forward
    extremities are left out.
    """
    after, configured = "", stream_settings()
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(_POLICIES, [after, _ROOMS_PER_QUERY])
            rows = cursor.fetchall()
        if not rows:
            return
        after = rows[-1][0]
        for room_id, policy in rows:
            lifetime = max_lifetime_ms(policy, configured)
            deepest = deepest_extremity(room_id, using)
            # Messages are kept for ever or since before 1970, or the room has no forward extremity.
            if lifetime is None or lifetime >= now_ms or deepest is None:
                continue
            # A cut above the deepest forward extremity would be refused (``check_forward_extremities``).
            cut = min(cut_at_time(room_id, now_ms - lifetime, using), deepest)
            if cut > 0:
                yield room_id, cut
