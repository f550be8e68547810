"""``purge retention``: deletes messages that rooms have kept for long enough, by ``m.room.retention`` and the site's settings.

Expired messages are hidden from users at once (``events.visibility.access``). This purge deletes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connections

from events.errors import EventUnreadable, PurgeRefused
from events.format.strict_json import decode_stored
from events.maintenance.archiving import archiver
from events.maintenance.cut import count_left_behind, deepest_extremity, find_time_cut
from events.maintenance.purge_batch import PurgeRequest
from events.maintenance.purge_lock import purge_lock
from events.operations.purge_history import Purge, carry_out, deleted_words, foresee
from events.visibility.access import max_lifetime_ms
from streams.conf import stream_settings
from streams.jobs.arguments import JSON, YES, dry_run
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, Words, operation

_ROOMS_PER_QUERY = 1_000
_POLICIES = """
SELECT room.room_id, policy.event_id, policy.json FROM events_room room LEFT JOIN LATERAL (
    SELECT event_id, j.json FROM events_currentstate c JOIN events_event e USING (event_id)
    LEFT JOIN events_eventjson j USING (event_id)
    WHERE c.room_id = room.room_id AND c.type = 'm.room.retention' AND c.state_key = '' AND e.redacted_by IS NULL
) AS policy ON true
WHERE room.room_id > %s ORDER BY room.room_id LIMIT %s
"""


@operation
class PurgeRetention(Operation):
    """Purges messages that are older than their room's retention time."""

    name = "purge retention"
    help = "Delete the messages that rooms have kept for long enough, by m.room.retention and the site's settings."
    arguments = (*archiver().arguments, dry_run("only say how much would be deleted"), YES, JSON)
    commands = (
        Words(
            "purge retention",
            "Delete the messages that rooms have kept for long enough: m.room.retention in their current state, "
            "REPLSITE_RETENTION_DEFAULT_SECONDS elsewhere. State stays. Safe beside writers and readers; may be interrupted and "
            "repeated.",
            "purge retention --dry-run",
        ),
    )

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` if ``spark`` or ``master`` is given without a folder for an archive."""
        archiver().check(checked)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Purges room by room. If another job is purging a room, the room is left for the next run and listed as busy."""
        purge: Purge = foresee if run.arguments["dry_run"] else partial(carry_out, archives_nothing=False)
        rooms, busy, left = 0, list[str](), list[dict[str, Any]]()
        deleted = outliers = groups = 0
        for cut in retention_cuts(time.time_ns() // 1_000_000, run.using):
            if cut.why:
                left.append({"room_id": cut.room_id, "events": cut.left, "why": cut.why})
            if cut.depth <= 0:
                continue
            request = PurgeRequest(cut.room_id, cut.depth, delete_local=True, using=run.using)
            try:
                with purge_lock(cut.room_id, run.using):
                    _, _, events, unneeded, _ = purge(run, request, lambda _: None)
            except PurgeRefused:
                busy.append(cut.room_id)
                continue
            except EventUnreadable as error:
                left.append({"room_id": cut.room_id, "events": None, "why": str(error)})
                continue
            rooms += bool(events.deleted or events.became_outliers)
            deleted += events.deleted
            outliers += events.became_outliers
            groups += unneeded.groups
        return {
            "rooms": rooms,
            "dry_run": run.arguments["dry_run"],
            "deleted": deleted,
            "became_outliers": outliers,
            "state_groups_deleted": groups,
            "busy": busy[:100],
            "left": left[:100],
            "rooms_left": len(left),
        }

    plan = run

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        verb = deleted_words(summary)
        yield (
            f"{summary['rooms']} rooms: {summary['deleted']} events {verb}, {summary['became_outliers']} kept as outliers, "
            f"{summary['state_groups_deleted']} state groups {verb}"
        )
        for room_id in summary["busy"]:
            yield f"{room_id} is being purged already, or may not be cut; left as it is"
        for room in summary["left"]:
            events = "what has expired" if room["events"] is None else f"{room['events']} expired messages"
            yield f"{room['room_id']}: {events} stay: {room['why']}"
        if (more := summary["rooms_left"] - len(summary["left"])) > 0:
            yield f"{more} more rooms keep expired messages"


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
