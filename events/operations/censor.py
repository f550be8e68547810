"""``censor``: some time after the redaction, the stored JSON of a redacted event is replaced by its pruned form.

From the moment of the redaction, everything that serves events obeys the flag ``redacted_by``. Censoring only removes
the content from disk. Hashes and signatures stay, so event ID and signatures still verify.

Each transaction is small, concerns one room, and locks the room's row first, as every write to a room does. Censored
events are marked (``Event.censored_at``), so a run that was killed is simply started again. Other processes are notified
in the same transaction, by the room's ``content_generation`` and on the stream ``caches``.

The command ``censor`` does this without a job, and takes an age and a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any

from django.db import connections

from events.errors import EventRefused, NotCanonical
from events.format.canonical_json import encode
from events.format.parsing import parse_event
from events.format.redaction import prune
from events.format.strict_json import decode_event
from events.room_lock import changing_room
from state.rules.room_versions import room_version
from streams.conf import stream_settings
from streams.jobs.arguments import Argument, Type, dry_run
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, operation

_EVENTS_PER_TRANSACTION = 100
_LONGEST = timedelta(days=36_500)

_DUE = """
FROM events_event e LEFT JOIN events_event r ON r.event_id = e.redacted_by
WHERE e.redacted_by IS NOT NULL AND e.censored_at IS NULL
  AND greatest(e.received_at, r.received_at) <= clock_timestamp() - %(age)s * interval '1 second'
"""
_COUNT = f"SELECT count(*) {_DUE}"
_NEXT = f"""
SELECT e.room_id, e.stream_ordering, e.event_id {_DUE}
  AND (e.room_id, e.stream_ordering) > (%(room)s, %(position)s)
ORDER BY e.room_id, e.stream_ordering LIMIT %(limit)s
"""
_TEXTS = """
SELECT event_id, j.room_version, j.json FROM events_event e JOIN events_eventjson j USING (event_id)
WHERE event_id = ANY(%s) AND e.redacted_by IS NOT NULL AND e.censored_at IS NULL FOR UPDATE OF e, j
"""


@operation
class Censor(Operation):
    """Replaces the stored JSON of redacted events by their pruned form, some days after the redaction."""

    name = "censor"
    help = "Replace the stored JSON of events that were redacted long enough ago by their pruned form."
    arguments = (
        Argument(
            "days", Type.NUMBER, "redacted for at least so many days; none: as the site is set", bounds=(0, 36_500),
            default=lambda: stream_settings().censor_after_days,
        ),
        dry_run("only say how many would be censored"),
    )  # fmt: skip

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Counts the events that are due for censoring. Returns the summary of a dry run."""
        found = {"due": due(timedelta(days=run.arguments["days"]), run.using)}
        run.store_before(found)
        run.store_after(found)
        return {"censored": 0, "rooms": 0, "failed": []}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Censors the events that are due for censoring, room by room. Returns the summary, which names at most 100 failures."""
        age = timedelta(days=run.arguments["days"])
        before = due(age, run.using)
        run.store_before({"due": before})
        done = Censored()
        with run.stage("censor", before, "events") as count:
            for done in censor(age, run.using):
                count.add(done.events - count())
        run.store_after({"due": due(age, run.using)})
        return {"censored": done.events, "rooms": done.rooms, "failed": list(done.failed[:100])}


# --- the work ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Censored:
    """The progress of a run of ``censor``.

    ``failed`` has events that were not censored, because their pruned form would not verify.
    """

    events: int = 0
    rooms: int = 0
    failed: tuple[str, ...] = ()


def due(age: timedelta, using: str) -> int:
    """Returns the number of events to censor: both the event and its redaction were received at least ``age`` ago."""
    with connections[using].cursor() as cursor:
        cursor.execute(_COUNT, {"age": _seconds(age)})
        return int(cursor.fetchone()[0])


def censor(age: timedelta, using: str, limit: int | None = None) -> Iterator[Censored]:
    """Censors events that are due, at most ``limit`` of them. Yields the progress after every transaction.

    Must not be called inside a transaction. Appends facts, so this process becomes a writer of the stream ``caches``.
    """
    events, rooms, failed = 0, 0, list[str]()
    place, last_room = ("", 0), None
    while chunk := _next(age, place, _size(limit, events + len(failed)), using):
        place = chunk[-1][:2]  # events that failed are due for ever, so the next query begins behind them
        for room_id, rows in groupby(chunk, lambda row: row[0]):
            done, refused = _censor_room(room_id, [row[2] for row in rows], using)
            events, failed = events + done, failed + refused
            rooms += room_id != last_room
            last_room = room_id
            yield Censored(events, rooms, tuple(failed))


def censored_json(json: bytes, version: str, event_id: str) -> bytes:
    """Returns the pruned form of an event's JSON as canonical JSON, which is stored instead.

    ``version`` is the room version. Raises ``EventRefused`` or ``NotCanonical`` if the result would not be a valid event,
    or would have another event ID.
    """
    pruned = encode(prune(decode_event(json), room_version(version)), strict=False)
    parse_event(pruned, decode_event(pruned), version, event_id)
    return pruned


def _seconds(age: timedelta) -> float:
    """Returns an age in seconds. A very large age is reduced, so that the database can subtract it from the current time."""
    return min(age, _LONGEST).total_seconds()


def _size(limit: int | None, done: int) -> int:
    return _EVENTS_PER_TRANSACTION if limit is None else max(0, min(_EVENTS_PER_TRANSACTION, limit - done))


def _next(age: timedelta, place: tuple[str, int], limit: int, using: str) -> list[tuple[str, int, str]]:
    """Returns the next events to censor after ``place``, as (room, stream position, event ID).

    ``place`` is the (room, stream position) of the last event before them. Each event and its redaction were received
    at least ``age`` ago.
    """
    if not limit:
        return []
    with connections[using].cursor() as cursor:
        cursor.execute(_NEXT, {"age": _seconds(age), "room": place[0], "position": place[1], "limit": limit})
        return list(cursor.fetchall())


def _censor_room(room_id: str, event_ids: Sequence[str], using: str) -> tuple[int, list[str]]:
    """Censors events of one room in one transaction. Returns (number of censored events, IDs of events that failed)."""
    with changing_room(room_id, using) as (cursor, rows):
        # The events were found without the lock, so the query asks again which of them are redacted and not censored.
        cursor.execute(_TEXTS, [list(event_ids)])
        pruned, failed = _pruned(cursor.fetchall())
        if pruned:
            rows.censor(pruned)
    return len(pruned), failed


def _pruned(rows: Sequence[Any]) -> tuple[dict[str, bytes], list[str]]:
    found: dict[str, bytes] = {}
    failed = []
    for event_id, version, json in rows:
        try:
            found[event_id] = censored_json(bytes(json), version, event_id)
        except (EventRefused, NotCanonical):
            failed.append(event_id)
    return found, failed
