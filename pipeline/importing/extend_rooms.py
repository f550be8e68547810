"""Stores new events of rooms that exist, after the new rooms are loaded. Runs in Spark's driver, and needs Django.

New events are stored like live events: event auth against the room's stored state decides whether an event is rejected
or soft-failed. What the source says about rejection and soft failure is ignored, unless the site mirrors the source
(``as_stored``).

Batches of backfilled events come first, from the newest batch to the oldest, as when a server requests history from
another server. Within such a batch, the oldest event comes first. Each batch fills a part of the gap that the batch
before it did not fill. So positions on the stream ``backfill`` follow the order of the events. The outcome of a batch
is stored in the same transaction as the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.db import connections

from events.errors import EventUnreadable
from events.persist.batch import Incoming, PersistOutcome, persist
from events.persist.gap_filling import resolve_room
from events.persist.next_rows import Accepted
from events.room_lock import room_transaction
from pipeline.frames.sources.parts import HEAD_BYTES
from pipeline.importing.staging_tables import tables
from streams.conf import stream_settings
from streams.jobs.job_run import JobRun

__all__ = ["EVENTS_PER_BATCH", "extend_rooms"]

EVENTS_PER_BATCH = 1_000
_NEXT = """
SELECT k.place, k.source, k.line, k.backward, e.outlier, e.room_version, e.event_id, e.json, e.rejected_reason, e.soft_failed,
    least(e.stream_ordering, -1)
FROM {known} k JOIN {event} e USING (source, line) ORDER BY k.place LIMIT %s
"""
_COUNT_STORED = """
INSERT INTO pipeline_importedroom (job_id, room_id, imported, rejected, unresolved)
SELECT %s, room_id, imported, rejected, 0
FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) AS found (room_id, imported, rejected)
ON CONFLICT (job_id, room_id) DO UPDATE
SET imported = pipeline_importedroom.imported + EXCLUDED.imported, rejected = pipeline_importedroom.rejected + EXCLUDED.rejected
"""
#: Existing rooms of the job that have events without state. For rooms that the job loaded, such events are counted
#: already.
_UNRESOLVED_ROOMS = """
SELECT DISTINCT e.room_id FROM events_event e JOIN pipeline_importedroom i USING (room_id)
WHERE i.job_id = %s AND i.unresolved = 0 AND e.state_unresolved ORDER BY e.room_id
"""
_COUNT_UNRESOLVED = """
UPDATE pipeline_importedroom i SET unresolved = found.unresolved FROM (
    SELECT e.room_id, count(*) AS unresolved FROM events_event e JOIN {event} s USING (event_id)
    WHERE e.state_unresolved AND e.room_id = ANY (%s) GROUP BY e.room_id
) AS found WHERE i.job_id = %s AND i.room_id = found.room_id
"""


def extend_rooms(run: JobRun, *, as_stored: bool = False) -> None:
    """Stores the staged events of existing rooms, in their order. Refused events are quarantined with the reason.

    ``as_stored``: with the source's own verdicts, and above gaps, as ``persist`` says.

    If the job is cancelled, raises ``JobCancelled`` between two batches. Batches that were stored before stay stored.
    """
    names = tables(run.id)
    with connections[run.using].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM {known}".format(**names))
        total = int(cursor.fetchone()[0])
        server = stream_settings().server_name
        if total:
            with run.stage("known rooms", total, "events") as count:
                while rows := _next(cursor, names):
                    with room_transaction(run.using):
                        # ``_record_outcome`` deletes the batch's rows from ``known`` in the same transaction. So a killed job
                        # repeats the batch as a whole, or not at all.
                        outcome = persist(
                            [_incoming(row, as_stored=as_stored) for row in rows],
                            run.using,
                            verified=True,  # checked when the lines were parsed, or the sources are trusted
                            history_of=server,
                            as_stored=as_stored,
                        )
                        _record_outcome(cursor, run.id, names, rows, outcome)
                    count.add(len(rows))
        # Above a filled gap there may be more events than one batch resolves. The rooms are read from the tables,
        # because this run may not have stored them: A stores the last batch and is killed, then B resumes the job,
        # which has no batch left.
        cursor.execute(_UNRESOLVED_ROOMS, [run.id])
        rooms = [room_id for (room_id,) in cursor.fetchall()]
        for room_id in rooms:
            with suppress(EventUnreadable):  # its events stay unresolved, and are counted so
                resolve_room(room_id, run.using, Accepted(unproven=True, as_stored=as_stored))
        cursor.execute(_COUNT_UNRESOLVED.format(**names), [rooms, run.id])


def _incoming(row: Sequence[Any], *, as_stored: bool) -> Incoming:
    _, _, _, backward, outlier, version, event_id, json, reason, soft_failed, place = row
    found = Incoming(bytes(json), version, event_id, outlier=outlier, backfilled=backward)
    return replace(found, verdict=(reason, soft_failed), backfilled_at=place) if as_stored else found


def _next(cursor: Any, names: Mapping[str, str]) -> list[Any]:
    """Returns the staged rows of the next batch, in the order in which their events are to be stored.

    The events of a batch are either all backfilled or all live. In a batch of backfilled events, the oldest event is
    first.
    """
    cursor.execute(_NEXT.format(**names), [EVENTS_PER_BATCH])
    rows = cursor.fetchall()
    kind = rows[0][3] if rows else False
    same = [row for row in rows if row[3] == kind]
    return same[::-1] if kind else same


def _record_outcome(
    cursor: Any, job: int, names: Mapping[str, str], rows: Sequence[Any], outcome: PersistOutcome
) -> None:
    """Adds the events of a batch to the counts of their rooms, and the refused events to the quarantine.

    Deletes the rows of the batch from the table of events that are still to be stored.
    """
    stored = Counter(event.room_id for event in outcome.stored)
    rejected = Counter(event.room_id for event in outcome.stored if event.rejected_reason is not None)
    rooms = sorted(stored)
    cursor.execute(_COUNT_STORED, [job, rooms, [stored[room] for room in rooms], [rejected[room] for room in rooms]])
    for refused in outcome.refused:
        _, source, line, *_, json, _, _, _ = rows[refused.place]
        detail = refused.error.detail.replace("\0", "\\0")[:1000]
        cursor.execute(
            "INSERT INTO {broken} (source, line, reason, detail, head) VALUES (%s, %s, %s, %s, %s)".format(**names),
            [source, line, str(refused.error.reason), detail, bytes(json)[:HEAD_BYTES]],
        )
    cursor.execute("DELETE FROM {known} WHERE place = ANY (%s)".format(**names), [[row[0] for row in rows]])
