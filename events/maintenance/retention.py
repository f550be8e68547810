"""What rooms have kept for long enough: where each may be cut, by ``m.room.retention`` and the site's settings.

Expired messages are hidden on reading at once (``events.visibility.access``); a purge, with messages of this server included,
deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connections

from events.maintenance.purge_history import cut_at_time, deepest_leaf
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
    """(room, depth) of each room that has events that have expired by that time.

    The last of them stays, like the event that any purge is cut at, and so does a room's deepest leaf.
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
            deepest = deepest_leaf(room_id, using)
            if lifetime is None or lifetime >= now_ms or deepest is None:
                continue
            cut = min(cut_at_time(room_id, now_ms - lifetime, using), deepest)
            if cut > 0:
                yield room_id, cut
