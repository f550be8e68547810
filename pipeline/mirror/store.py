"""Stores what a mirrored server has stored, and how far that goes, in one transaction. Needs Django.

Events are stored like live events (``events.persist``), with the server's own verdicts. A batch and the positions that it
reaches are committed together. So a killed mirror repeats a batch as a whole, or not at all. If a batch fills a gap with
too many events above it for one transaction, the positions follow when these have their states.

A writer's position is where the server has announced it. A writer that was never announced, for instance one that is no
longer configured, holds nothing back: its events are read when all announced writers have been beyond them for a while.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connections

from events.errors import EventUnreadable, Reason, UnknownRoom
from events.models import PurgedRoom
from events.persist.batch import Incoming, PersistOutcome, persist
from events.persist.gap_filling import resolve_room
from events.persist.next_rows import Accepted
from events.room_lock import room_transaction
from pipeline.errors import MirrorBusy, SourceWentBack
from pipeline.frames.sources.parts import HEAD_BYTES, Line
from pipeline.mirror.given_states import MOST_GIVEN, above_gaps, give_states
from pipeline.mirror.source import BACKFILL, EVENTS, NewEvent, Range, SynapseSource
from pipeline.models import Job, MirroredServer, QuarantinedLine
from streams.runtime.logs import get_logger
from streams.runtime.text import storable

__all__ = ["EVENTS_PER_BATCH", "OTHERS", "MirrorStore", "Positions"]

log = get_logger(__name__)
EVENTS_PER_BATCH = 500
#: A statement reads no more positions than this, however far this mirror, or a single writer, is behind. Otherwise it could
#: never end in its time: the events of a writer that is no longer configured may lie millions of positions apart.
POSITIONS_PER_BATCH = 100_000
OTHERS = ""
#: A process that starts announces its positions within some seconds. After this time a writer without a position is none.
SILENT_SECONDS = 60.0
_MOVE = """
UPDATE pipeline_mirroredserver SET positions = %(new)s::jsonb, events = events + %(events)s, rejected = rejected + %(rejected)s,
    refused = refused + %(refused)s, left_out = left_out + %(left_out)s,
    moved_at = CASE WHEN %(events)s > 0 THEN clock_timestamp() ELSE moved_at END
WHERE name = %(name)s AND positions = ANY (%(known)s::text[]::jsonb[])
"""
Positions = Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class _Counts:
    events: int = 0
    rejected: int = 0
    refused: int = 0
    left_out: int = 0


@dataclass(slots=True)
class _Announced:
    """The lowest positions of all announced writers of a stream over time, so that silent writers can be read later."""

    lowest: deque[tuple[float, int]] = field(default_factory=deque)

    def settled(self, now: float, announced: Mapping[str, int]) -> int:
        """Returns the position up to which no unknown writer can have an open event any more, or 0."""
        low = min(announced.values(), default=0)
        if not self.lowest or now - self.lowest[-1][0] >= 1.0:
            self.lowest.append((now, low))
        found = 0
        while self.lowest and now - self.lowest[0][0] >= SILENT_SECONDS:
            found = self.lowest[0][1]
            if len(self.lowest) == 1 or now - self.lowest[1][0] < SILENT_SECONDS:
                break
            self.lowest.popleft()
        return found


class MirrorStore:
    """The rooms of one mirrored server here. Only one thread at a time may use it."""

    def __init__(self, server: MirroredServer, source: SynapseSource, using: str) -> None:
        self._server, self._source, self._using = server, source, using
        self._positions: dict[str, dict[str, int]] = {name: dict(known) for name, known in server.positions.items()}
        #: What the row has: several texts after a commit whose answer was lost, the last one if it was made.
        self._stored = [json.dumps(server.positions)]
        self._silent = {EVENTS: _Announced(), BACKFILL: _Announced()}
        self._checked = 0
        #: Events without a state, of which the server's state has entries that are not here.
        self._incomplete: set[str] = set()
        self.total = _Counts()

    @property
    def positions(self) -> Positions:
        return self._positions

    def position_of(self, stream: str, writer: str) -> int:
        known = self._positions[stream]
        return known.get(writer, known.get(OTHERS, 0))

    def is_behind(self, announced: Positions) -> bool:
        return any(
            at > self.position_of(stream, writer)
            for stream in (EVENTS, BACKFILL)
            for writer, at in announced.get(stream, {}).items()
        )

    def advance(self, announced: Positions) -> bool:
        """Stores a batch of the events up to the announced positions. Returns true if there may be more.

        Raises ``SourceAway`` and ``django.db.Error`` while one of the databases is away, after which the call can be
        repeated. Raises ``MirrorBusy`` and ``SourceWentBack``.
        """
        self._check_source(announced)
        new = {stream: dict(known) for stream, known in self._positions.items()}
        found: list[tuple[str, NewEvent]] = []
        more = False
        for stream in (EVENTS, BACKFILL):
            if not (wanted := self._ranges(stream, announced.get(stream, {}))):
                continue
            ranges = _lowest(wanted)
            more |= ranges != wanted
            rows = self._source.read(stream, ranges, list(announced.get(stream, ())), EVENTS_PER_BATCH)
            # Rows come by position, those of all writers in one order. So a cut batch is whole for each up to its last row.
            last = rows[-1].place if len(rows) == EVENTS_PER_BATCH else None
            more |= last is not None
            for writer, read in ranges.items():
                new[stream][writer] = read.upto if last is None else max(read.after, min(read.upto, last))
            found += [(stream, row) for row in rows]
        if found:
            self._store(found, new)
        # Without events, positions need not be stored: what lies between the old ones and these is empty for ever.
        self._positions = new
        return more

    def store_positions(self) -> None:
        """Stores the positions that moved without events."""
        if [json.dumps(self._positions)] != self._stored:
            self._move_alone(self._positions)

    # --- ranges -----------------------------------------------------------------------------------------------------

    def _ranges(self, stream: str, announced: Mapping[str, int]) -> dict[str, Range]:
        found = {}
        for writer, upto in announced.items():
            after = self.position_of(stream, writer)
            if upto > after:
                found[writer] = Range(after, upto)
        settled = self._silent[stream].settled(time.monotonic(), announced)
        others = self._positions[stream].get(OTHERS, 0)
        if settled > others:
            found[OTHERS] = Range(others, settled)
        return found

    def _check_source(self, announced: Positions) -> None:
        if self._checked != self._source.opened or not self._checked:
            self._source.check()
        # Each time: a restore may keep the connection. Asked after the positions were announced, and a sequence only rises.
        for stream, upto in self._source.given_out().items():
            ours = max(self._positions[stream].values(), default=0)
            if upto < ours:
                raise SourceWentBack(
                    f"{self._source.name} has given out position {upto} of the stream {stream}, and this mirror is at {ours}: "
                    "the database was restored from a backup, or it is another one. The rooms here may hold events that are "
                    "gone there. Mirror it under another name into an empty site."
                )
            if upto < (theirs := max(announced.get(stream, {}).values(), default=0)):
                raise SourceWentBack(
                    f"{self._source.name} has given out position {upto} of the stream {stream}, and the server announces "
                    f"{theirs}: it is not the database of this server, or it was restored from a backup. Nothing was stored. "
                    "Name the database and the replication of one server."
                )
        self._checked = self._source.opened

    # --- storing ----------------------------------------------------------------------------------------------------

    def _store(self, found: Sequence[tuple[str, NewEvent]], new: Positions) -> None:
        given = [(row, row.line) for _, row in found if row.line is not None]
        incoming = [_incoming(line.content, line.given or {}) for _, line in given]
        with room_transaction(self._using):
            outcome = persist(incoming, self._using, verified=True, history_of=self._server.server_name, as_stored=True)
            counts = _Counts(len(outcome.stored), sum(event.rejected_reason is not None for event in outcome.stored))
            aside = [
                (row.place, row.broken.reason, row.broken.detail, row.broken.head) for _, row in found if row.broken
            ]
            self._put_aside(outcome, given, aside, counts)
            above = self._give_states(above_gaps(self._using, outcome.without_state)) if outcome.without_state else []
            # A batch that is repeated finds duplicates, whose gaps it may have left unfinished.
            again = set(outcome.duplicates)
            unfinished = {
                *outcome.unfinished_rooms,
                *above,
                *(row.room_id for row, line in given if _id(line) in again),
            }
            self._move(self._positions if unfinished else new, counts)
        self._stored = self._stored[-1:]
        for name in ("events", "rejected", "refused", "left_out"):
            setattr(self.total, name, getattr(self.total, name) + getattr(counts, name))
        self._resolve(unfinished)
        if unfinished:
            self._move_alone(new)

    def give_all_states(self) -> None:
        """Gives states to all events above gaps that have none: after the import, which reads no states of the server.

        Called at each start, because the server may have got states since. Raises what ``advance`` raises.
        """
        self._give_each(above_gaps(self._using))

    def give_waiting_states(self) -> None:
        """Gives the states whose entries were not all here before. Raises what ``advance`` raises."""
        if self._incomplete:
            waiting, self._incomplete = self._incomplete, set()
            self._give_each(above_gaps(self._using, waiting))

    def _give_each(self, event_ids: Sequence[str]) -> None:
        for first in range(0, len(event_ids), MOST_GIVEN):
            self._resolve(self._give_states(event_ids[first : first + MOST_GIVEN]))

    def _give_states(self, event_ids: Sequence[str]) -> list[str]:
        # Returns the rooms in which more events may get a state now.
        rooms: list[str] = []
        for first in range(0, len(event_ids), MOST_GIVEN):
            some = event_ids[first : first + MOST_GIVEN]
            outcome, incomplete = give_states(self._source, self._server.server_name, self._using, some)
            rooms += outcome.unfinished_rooms
            self._incomplete.update(incomplete)
        return rooms

    def _resolve(self, rooms: Collection[str]) -> None:
        for room_id in sorted(rooms):
            try:
                resolve_room(room_id, self._using, Accepted(unproven=True, as_stored=True))
            except (EventUnreadable, UnknownRoom) as error:
                log.warning("mirror.states_unresolved", room=room_id, error=str(error))

    def _put_aside(self, outcome: PersistOutcome, given: Sequence[Any], aside: list[Any], counts: _Counts) -> None:
        unknown = {
            given[refused.place][0].room_id
            for refused in outcome.refused
            if refused.error.reason is Reason.UNKNOWN_ROOM
        }
        purged = set(
            PurgedRoom.objects.using(self._using).filter(room_id__in=unknown).values_list("room_id", flat=True)
        ) if unknown else set()  # fmt: skip
        for refused in outcome.refused:
            row, line = given[refused.place]
            if refused.error.reason is Reason.UNKNOWN_ROOM and row.room_id in purged:
                counts.left_out += 1
            else:
                aside.append((row.place, str(refused.error.reason), refused.error.detail, line.content))
        counts.refused = len(aside)
        for place, reason, detail, _ in aside:
            log.warning("mirror.event_put_aside", stream_ordering=place, reason=reason, error=storable(detail)[:300])
        # The row of the job, with its lines, is removed after some time. Then the log alone has the reasons.
        job = self._server.import_job
        if not aside or job is None or not Job.objects.using(self._using).filter(pk=job).exists():
            return
        QuarantinedLine.objects.using(self._using).bulk_create(
            QuarantinedLine(
                job_id=job,
                file=self._source.name,
                line=place,
                reason=reason,
                detail=storable(detail)[:1000],
                content=content[:HEAD_BYTES],
            )
            for place, reason, detail, content in aside
        )

    def _move_alone(self, new: Positions) -> None:
        with room_transaction(self._using):
            self._move(new, _Counts())
        self._stored = self._stored[-1:]

    def _move(self, new: Positions, counts: _Counts) -> None:
        with connections[self._using].cursor() as cursor:
            cursor.execute(
                _MOVE,
                {
                    "name": self._server.name,
                    "known": self._stored,
                    "new": json.dumps(new),
                    "events": counts.events,
                    "rejected": counts.rejected,
                    "refused": counts.refused,
                    "left_out": counts.left_out,
                },
            )
            if cursor.rowcount != 1:
                raise MirrorBusy(
                    f"The positions of the mirror {self._server.name!r} are not those that this process stored: another "
                    "process has moved them, or the row is gone. Nothing of this batch was stored. Stop the other process."
                )
        self._stored.append(json.dumps(new))  # the answer to the commit may be lost


def _lowest(ranges: Mapping[str, Range]) -> dict[str, Range]:
    # The part of the ranges that one statement reads.
    end = min(wanted.after for wanted in ranges.values()) + POSITIONS_PER_BATCH
    return {w: Range(wanted.after, min(wanted.upto, end)) for w, wanted in ranges.items() if wanted.after < end}


def _id(line: Line) -> str:
    return str((line.given or {})["event_id"])


def _incoming(content: bytes, given: Mapping[str, Any]) -> Incoming:
    place = given["stream_ordering"]
    return Incoming(
        content,
        given["room_version"],
        given["event_id"],
        outlier=given["outlier"],
        backfilled=place < 0,
        verdict=(given["rejected_reason"], given["soft_failed"]),
        backfilled_at=min(place, -1),
    )
