"""Stores the heartbeat of a writing process, with the pending facts of its streams, once every ``heartbeat_seconds``.

The same statement returns the other writers that are silent, and a number that shows whether any position of the
process's streams changed. An idle process needs no other data, so it executes only one statement each time.

The update succeeds only under the current lease. If another process has taken the name, no row changes, and this
process is fenced. Ages are sent to the database instead of times, because this host's clock may be wrong. All stored
times come from the database's clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from streams.conf import stream_settings
from streams.core import lookup
from streams.db import driver
from streams.writing.dead_writers import SILENT_WRITERS
from streams.writing.transaction import OpenTransaction

if TYPE_CHECKING:
    from streams.core.tracker import PositionTracker
    from streams.writing.writer import WriterProcess

__all__ = ["Found", "beat"]

#: If a message that fetches IDs takes longer than this, its IDs count as pending. The message is probably waiting for a lock.
SLOW_SECONDS = 1.0

_BEAT = f"""
WITH beat AS (
    UPDATE streams_instance SET heartbeat_at = clock_timestamp() WHERE name = %(by)s::text AND lease = %(lease)s
    RETURNING state, drain_asked_by
)
SELECT state, drain_asked_by, ARRAY({SILENT_WRITERS}), (
    SELECT coalesce(sum(hashtextextended(concat_ws(' ', stream, instance_name, p.state, generation), position)), 0)::text
    FROM streams_streamposition p WHERE stream = ANY(%(streams)s::text[])
)
FROM beat
"""
_PENDING = """
UPDATE streams_streamposition p SET
    pending_facts = given.pending, oldest_pending_id = given.oldest,
    oldest_pending_at = least(
        CASE WHEN p.oldest_pending_id = given.oldest THEN p.oldest_pending_at END,
        clock_timestamp() - make_interval(secs => given.age)
    ),
    oldest_pending_transaction = given.transaction,
    facts_written = p.facts_written + given.written, facts_rolled_back = p.facts_rolled_back + given.rolled_back,
    updated_at = clock_timestamp()
FROM unnest(%(streams)s::text[], %(pending)s::int[], %(oldest)s::bigint[], %(age)s::float8[], %(transactions)s::bigint[],
            %(written)s::bigint[], %(rolled_back)s::bigint[])
    AS given (stream, pending, oldest, age, transaction, written, rolled_back)
WHERE p.stream = given.stream AND p.instance_name = %(name)s
"""


class Found(NamedTuple):
    """The silent writers, and a digest of the positions of all writers of this process's streams."""

    silent: Sequence[str]
    positions: str


def beat(cursor: Any, writer: WriterProcess, open_transactions: Sequence[OpenTransaction]) -> Found | None:
    """Stores the heartbeat and the pending facts. Returns the silent writers, and a digest of all positions.

    Makes the writer drain if its row in the database says that an operator asked for it. If its lease is not the current
    one, fences the process and returns None.
    """
    given = {
        "by": writer.name,
        "lease": writer.lease,
        "streams": list(writer.trackers),
        "silent": 3 * stream_settings().heartbeat_seconds,
    }
    driver.execute_prepared(cursor, _BEAT, given)
    row = cursor.fetchone()
    if row is None:
        writer.fenced("another process holds the name under a newer lease")
        return None
    state, drain_asked_by, *found = row
    if state == "draining":
        writer.begin_drain(drain_asked_by)
    rows = [_row(stream, writer, open_transactions) for stream in writer.trackers]
    changed = [row for row in rows if row is not None]
    if changed:
        names = ("streams", "pending", "oldest", "age", "transactions", "written", "rolled_back")
        columns = [list(column) for column in zip(*changed, strict=True)]
        cursor.execute(_PENDING, dict(zip(names, columns, strict=True)) | {"name": writer.name})
    return Found(*found)


def _row(stream: str, writer: WriterProcess, open_transactions: Sequence[OpenTransaction]) -> tuple[Any, ...] | None:
    """Returns the values to store for one stream: its pending IDs, and the numbers of IDs committed and rolled back.

    Returns None if nothing changed since the last heartbeat.
    """
    tracker = writer.trackers[stream]
    written, rolled_back = tracker.take_counts()
    count, first, since, transaction = _pending(tracker, stream, open_transactions)
    # An ID is pending for a moment before its transaction is recorded. ``since`` then changes, so the row is sent again.
    shown = (first, count, since)
    if writer.shown_pending.get(stream) == shown and not written and not rolled_back:
        return None
    writer.shown_pending[stream] = shown
    return (
        stream,
        count,
        first * lookup.get(stream).sign if first is not None else None,
        None if since is None else time.monotonic() - since,
        transaction,
        written,
        rolled_back,
    )


def _pending(
    tracker: PositionTracker, stream: str, open_transactions: Sequence[OpenTransaction]
) -> tuple[int, int | None, float | None, int | None]:
    """Describes the pending IDs of a stream by four values.

    1. The number of pending IDs.
    2. The oldest pending ID.
    3. The time of the monotonic clock since which that ID is pending.
    4. The number of the transaction that took that ID.

    The last three are None if they are not known, or if nothing is pending.
    """
    pending = tracker.pending
    holders = [(record.pending().get(stream), record) for record in open_transactions if not record.ended]
    oldest = min((h for h in holders if h[0] is not None), key=lambda holder: holder[0] or 0, default=None)
    first = pending[0] if pending else None
    since, transaction = (oldest[1].opened_at, oldest[1].number) if oldest and pending else (None, None)
    slow = tracker.fetches_begun_before(time.monotonic() - SLOW_SECONDS)
    if slow:  # the IDs and transactions of these fetches are not known here yet
        first = min(first or slow[0].above + 1, slow[0].above + 1)
        if since is None or slow[0].begun_at < since:
            since, transaction = slow[0].begun_at, None
    return len(pending) + sum(fetch.count for fetch in slow), first, since, transaction
