"""Restores archived events of a room at their old positions, some thousand in each transaction, from the latest down.

The caller reads rows of an archive as dictionaries. Events get their old stream positions, so clients and named readers
do not take them for new events, and the stored visibility ranges still apply to them. Their JSON is stored as archived,
but redacted if it does not match its hash.

Stored events stay as they are, because they may have been redacted, censored or backfilled since. Only an outlier that
had a place in the graph gets that place back. A redaction that came while its target was not stored is applied. After
every transaction the room looks like a room whose history begins a little lower.

State groups are stored first, under new IDs. An archive has all groups on which the groups of its events build, so no
stored group is changed. Assumes that the caller opens a transaction for each call, and that no purge of the room runs
meanwhile (``events.maintenance.purge_lock``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import itemgetter
from typing import Any

from django.db import IntegrityError, transaction

from events.columns import COLUMNS
from events.declarations import CACHE_NAME
from events.errors import EventRefused, EventUnreadable, PositionsTaken, Reason
from events.format.parsing import Verdict, parse_stored
from events.format.redaction import may_redact
from events.maintenance.purge_batch import recompute_current_state
from events.models import Event, EventVisibility
from events.persist.rebuild_visibility import rebuild_visibility
from events.persist.state_changes import users_of
from events.room_lock import changing_room
from events.rows import BY_INDEX, CHANGE_ROOM, MAKE_ROOMS, RoomRows, open_gaps, write
from events.stored_states import StoredStates
from state.rules.auth_rules import AuthRules
from state.rules.room_versions import room_version
from streams.holds.hold import CHANGE_FACTS

Archived = Mapping[str, Any]
"""A row of an archive: column -> value."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VALUES = {table: itemgetter(*columns) for table, columns in COLUMNS.items()}
_STORED = """
SELECT event_id, stream_ordering, outlier, room_id FROM events_event WHERE event_id = ANY(%s::text[])
UNION SELECT event_id, stream_ordering, outlier, room_id FROM events_event WHERE stream_ordering = ANY(%s::bigint[])
"""
_MISSING = "SELECT event_id FROM events_backwardextremity WHERE room_id = %s"
#: The next statements read tables that this transaction fills. Their statistics may be those of empty tables, after a purge.
#: Then a plan of joins would read all rows of one table for each row of another. ``OFFSET 0`` makes PostgreSQL look up each row.
_EVENT = "LATERAL (SELECT * FROM events_event WHERE {} OFFSET 0)"
_ABOVE = "LATERAL (SELECT event_id FROM events_eventedge WHERE prev_event_id = {} OFFSET 0)"
#: Timeline gaps that are none any more: at events of which no prev event is missing, and all prev events came first. If a
#: prev event came later or by backfill, the gap stays: clients that have synced across it still have to ask for that
#: prev event.
_CLOSED_GAPS = f"""
SELECT gap.room_id, gap.stream_ordering
FROM events_timelinegap gap, {_EVENT.format("stream_ordering = gap.stream_ordering")} AS above
WHERE gap.room_id = %(room)s AND NOT EXISTS (
    SELECT FROM events_eventedge edge LEFT JOIN {_EVENT.format("event_id = edge.prev_event_id")} AS e ON true
    WHERE edge.event_id = above.event_id AND (e.room_id IS DISTINCT FROM %(room)s
        OR e.outlier OR e.stream_ordering < 0 OR e.stream_ordering > above.stream_ordering)
    OFFSET 0)
"""
_EXTREMITIES = f"""
SELECT own.event_id, own.room_id FROM events_event own
WHERE own.event_id = ANY(%(extremities)s::text[]) AND NOT own.outlier AND NOT EXISTS (
    SELECT FROM {_ABOVE.format("own.event_id")} AS edge, {_EVENT.format("event_id = edge.event_id")} AS e
    WHERE e.room_id = %(room)s AND NOT e.outlier AND NOT e.soft_failed AND e.rejected_reason IS NULL
    OFFSET 0)
"""
#: A restored event may build on a forward extremity, if it claims a lower depth than that.
_HAS_EDGE_TO_EXTREMITY = f"""
SELECT EXISTS (
    SELECT FROM events_forwardextremity leaf, {_ABOVE.format("leaf.event_id")} AS edge,
        {_EVENT.format("event_id = edge.event_id")} AS e
    WHERE leaf.room_id = %(room)s AND e.room_id = %(room)s AND NOT e.outlier)
"""
#: Redactions that came while their targets were not stored, in stream order. The first that applies is recorded.
_LATE_REDACTIONS = f"""
SELECT redaction.event_id, target.event_id
FROM unnest(%(new)s::text[]) AS new (event_id), {_EVENT.format("redacts = new.event_id")} AS redaction,
    {_EVENT.format("event_id = redaction.redacts")} AS target
WHERE target.redacted_by IS NULL
  AND redaction.room_id = %(room)s AND NOT redaction.outlier AND NOT redaction.soft_failed AND redaction.rejected_reason IS NULL
ORDER BY redaction.stream_ordering
"""
#: The room's row comes before its events, so its name could not be read then.
_NAME = "SELECT events_name_rooms(ARRAY[%(room)s])"
_OF_ANOTHER_EVENT = (Reason.WRONG_EVENT_ID, Reason.DUPLICATE_KEY)
"""Reasons that show that a text is not the JSON of the event. Its content may be anything."""
_NO_VERDICT = Verdict(False, None, False, None, True, True)
_RANGES_LOST = """
SELECT EXISTS (
    SELECT FROM unnest(%(users)s::text[], %(kinds)s::text[], %(firsts)s::bigint[], %(lasts)s::bigint[])
        AS old (user_id, kind, first, last)
    WHERE NOT EXISTS (
        SELECT FROM events_eventvisibility stored WHERE stored.room_id = %(room)s
          AND stored.user_id IS NOT DISTINCT FROM old.user_id AND stored.kind = old.kind AND stored.first = old.first
          AND (stored.last IS NOT DISTINCT FROM old.last OR old.last IS NULL)))
"""


@dataclass(slots=True)
class EventsRestored:
    """The progress of a restore, in events.

    ``restored`` events were inserted. ``placed`` events were outliers and got their place in the graph back. ``here``
    events were stored already and stay as they are. ``redacted`` events were redacted while they were not stored.
    """

    restored: int = 0
    placed: int = 0
    here: int = 0
    redacted: int = 0


@dataclass(frozen=True, slots=True)
class RestoredRoom:
    """A room whose events are restored. ``groups`` maps the IDs of archived state groups to the IDs of their copies.

    ``extremities`` are the archived forward extremities. ``gaps`` maps the positions of archived timeline gaps to their
    writers. ``whole`` is true if the room itself was restored in this transaction, so that its current state and its
    ranges are stored already.
    """

    room_id: str
    using: str
    groups: Mapping[int, int]
    extremities: Collection[str]
    gaps: Mapping[int, str]
    whole: bool


def copy_groups(
    cursor: Any, room_id: str, groups: Iterable[Archived], deltas: Iterable[Archived], ids: Mapping[int, int]
) -> None:
    """Stores archived state groups and deltas. ``ids`` maps each archived ID to a new one."""
    rows = RoomRows()
    for group in groups:
        below = None if group["prev_group"] is None else ids[group["prev_group"]]
        sizes = (group[name] for name in ("hops", "keys", "rows_to_read"))
        rows.add("state_stategroup", ids[group["id"]], room_id, below, ids[group["chain"]], *sizes)
    for delta in deltas:
        entry = (delta[name] for name in ("type", "state_key", "event_id"))
        rows.add("state_stategroupdelta", ids[delta["chain"]], ids[delta["state_group"]], *entry)
    write(cursor, rows)


def restore_room(cursor: Any, room: Archived) -> None:
    """Inserts the row of a room that is not stored. The rest of the transaction may insert facts.

    The room gets a content generation that it never had, so no process uses what it cached of the room's former content.
    Call it before ``add_archived`` and ``restore_events``, in the same transaction.
    """
    room_id = room["room_id"]
    cursor.execute(f"{CHANGE_FACTS}; DELETE FROM events_purgedroom WHERE room_id = %s", [room_id])
    cursor.execute(MAKE_ROOMS, {"begun": [room_id], "versions": [room["room_version"]]})
    rows = RoomRows()
    rows.change("events_room", room_id, **{name: room[name] for name in COLUMNS["events_room"][2:]})
    write(cursor, rows)


def add_archived(cursor: Any, room_id: str, table: str, archived: Iterable[Archived]) -> None:
    """Inserts archived rows of a room as they are."""
    rows = RoomRows()
    for row in archived:
        _add(rows, table, {"room_id": room_id, **row})
    write(cursor, rows)


def _add(rows: RoomRows, table: str, archived: Archived) -> None:
    times = {
        f"{name[:-3]}_at": None if archived[name] is None else _EPOCH + timedelta(microseconds=archived[name])
        for name in ("received_us", "censored_us")
        if name in archived
    }
    rows.add(table, *_VALUES[table](archived), **times)


def restore_events(room: RestoredRoom, archived: Sequence[Archived], done: EventsRestored) -> None:
    """Inserts events that ``without_misfits`` has returned, and counts them in ``done``.

    Raises ``PositionsTaken`` if another event has one of the stream positions. Appends a fact to the stream ``caches``,
    except for a ``whole`` room.
    """
    room_id = room.room_id
    with changing_room(room_id, room.using, f"{CHANGE_ROOM}; {BY_INDEX}; {CHANGE_FACTS}") as (cursor, changes):
        ids, positions = ([event[name] for event in archived] for name in ("event_id", "stream_ordering"))
        cursor.execute(_STORED, [ids, positions])
        stored = {event_id: columns for event_id, *columns in cursor.fetchall()}
        _check_positions(archived, stored)
        new = [event for event in archived if event["event_id"] not in stored]
        placed = [
            event
            for event in archived
            if stored.get(event["event_id"], ())[1:] == [True, room_id] and not event["outlier"]
        ]
        cursor.execute(_MISSING, [room_id])
        missing = {event_id for (event_id,) in cursor.fetchall()}
        rows = _event_rows(room, new, placed)
        graph = [event for event in (*new, *placed) if not event["outlier"]]
        closed = missing.intersection(event["event_id"] for event in graph)
        rows.remove("events_backwardextremity", *((room_id, event_id) for event_id in closed))
        try:
            with transaction.atomic(using=room.using):
                write(cursor, rows)
        except IntegrityError:  # damage left rows of events that are not stored
            write(cursor, _orphans(new))
            write(cursor, rows)
        restored = {event["event_id"]: event["stream_ordering"] for event in (*new, *placed)}
        names = {
            "room": room_id,
            "new": [event["event_id"] for event in new],
            "extremities": sorted(restored.keys() & room.extremities),
        }
        write(cursor, _gap_rows(cursor, room, graph, missing - closed, restored))
        rows = RoomRows()
        cursor.execute(_CLOSED_GAPS, names)
        rows.remove("events_timelinegap", *cursor.fetchall())
        cursor.execute(_EXTREMITIES, names)
        extremities = cursor.fetchall()
        for extremity in extremities:
            rows.add("events_forwardextremity", *extremity)
        redacted = _redact_late(cursor, rows, names, room.using)
        # If the state at a live event is unknown, the room's visibility ranges cannot be known.
        if not room.whole and any(_is_live(event) and event["state_unresolved"] for event in graph):
            rows.clear(room_id, "events_eventvisibility")
            rows.change("events_room", room_id, visibility_unresolved=True)
        write(cursor, rows)
        cursor.execute(_HAS_EDGE_TO_EXTREMITY, names)
        if (extremities or cursor.fetchone()[0]) and not room.whole:
            recompute_current_state(room_id, room.using)
        cursor.execute(_NAME, names)
        if not room.whole:  # after a whole room, the caller does this once for all batches
            changes.stale.append((CACHE_NAME, None))
            states = [(event.type, event.state_key) for event in redacted if event.state_key is not None]
            if states:
                changes.drop_state(room_id, [user for entry in states for user in users_of(*entry)])
    done.restored += len(new)
    done.placed += len(placed)
    done.here += len(archived) - len(restored)
    done.redacted += len(redacted)


def _event_rows(room: RestoredRoom, new: Sequence[Archived], placed: Sequence[Archived]) -> RoomRows:
    rows = RoomRows()
    for event in new:
        event_id, group = event["event_id"], room.groups.get(event["state_group"])
        _add(rows, "events_event", {**event, "room_id": room.room_id, "state_group": group})
        if event["json"] is not None:
            rows.add("events_eventjson", event_id, event["room_version"], event["json"])
        if event["auth_event_ids"] is not None:
            rows.add("events_eventauth", event_id, event["auth_event_ids"])
    for event in placed:
        names = ("outlier", "state_unresolved", "stream_ordering", "instance_name")
        group = room.groups.get(event["state_group"])
        rows.change("events_event", event["event_id"], state_group=group, **{name: event[name] for name in names})
    for event in (*new, *placed):
        if not event["outlier"]:
            for edge in _edges(event):
                rows.add("events_eventedge", *edge)
    return rows


def _orphans(events: Sequence[Archived]) -> RoomRows:
    rows = RoomRows()
    for event in events:
        rows.remove("events_eventjson", (event["event_id"],))
        rows.remove("events_eventauth", (event["event_id"],))
        rows.remove("events_eventedge", *_edges(event))
    return rows


def _edges(event: Archived) -> Iterator[tuple[str, str]]:
    return ((event["event_id"], prev) for prev in event["prev_event_ids"] or ())


def _gap_rows(
    cursor: Any, room: RestoredRoom, graph: Sequence[Archived], missing: Set[str], restored: Mapping[str, int]
) -> RoomRows:
    prevs = {prev for event in graph for _, prev in _edges(event)}.difference(event["event_id"] for event in graph)
    missing = missing | open_gaps(cursor, room.room_id, prevs - missing)
    gaps = {position: room.gaps[position] for position in restored.values() if position in room.gaps}
    for event in graph:
        if event["stream_ordering"] > 0 and not missing.isdisjoint(event["prev_event_ids"] or ()):
            gaps[event["stream_ordering"]] = event["instance_name"]
    rows = RoomRows()
    for position, writer in gaps.items():
        rows.add("events_timelinegap", room.room_id, position, writer)
    return rows


def _is_live(event: Archived) -> bool:
    return event["stream_ordering"] > 0 and not event["soft_failed"] and event["rejected_reason"] is None


def without_misfits(events: Iterable[Archived]) -> list[Archived]:
    """Returns events as they may be stored: in their redacted form if their JSON does not match their content hash.

    JSON of another event, or with a duplicate key, is left out. Needs no database.
    """
    return [_without_misfit(event) for event in events]


def _without_misfit(event: Archived) -> Archived:
    json = event["json"]
    if json is None:
        return event
    try:
        version = room_version(event["room_version"])
        kept = parse_stored(json, version, event["event_id"], _NO_VERDICT, {}, unique_keys=True)
    except ValueError as error:
        if isinstance(error, EventRefused) and error.reason in _OF_ANOTHER_EVENT:
            return {**event, "json": None}
        # Other text is stored as archived, and ``room check`` reports it. The table refuses bytes that are no text.
        return event if _is_text(json) else {**event, "json": _escaped(json)}
    return {**event, "json": kept.json, "redacts": kept.redacts, "relates_to": kept.relates_to} if kept.json else event


def _is_text(json: bytes) -> bool:
    try:
        json.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in json


def _escaped(content: bytes) -> bytes:
    # as PostgreSQL shows bytes in its escape format
    return re.sub(rb"[\0\x80-\xff]", lambda byte: b"\\%03o" % ord(byte[0]), content.replace(b"\\", b"\\\\"))


def _check_positions(archived: Sequence[Archived], stored: Mapping[str, Sequence[Any]]) -> None:
    owners = {position: event_id for event_id, (position, *_) in stored.items()}
    for event in archived:
        position = event["stream_ordering"]
        if (other := owners.get(position, event["event_id"])) != event["event_id"]:
            raise PositionsTaken(
                f"The stream position {position} of an archived event is that of {other} here: the archive is of another "
                "database. Import its events instead: manage.py import_events --as-history FOLDER/event-*.parquet"
            )


def _redact_late(cursor: Any, rows: RoomRows, names: Mapping[str, Any], using: str) -> list[Event]:
    """Flags restored events whose redaction came while they were not stored. Returns the flagged events."""
    cursor.execute(_LATE_REDACTIONS, names)
    pairs: Sequence[tuple[str, str]] = cursor.fetchall()
    if not pairs:
        return []
    cursor.execute("SELECT room_version FROM events_room WHERE room_id = %(room)s", names)
    version = room_version(cursor.fetchone()[0])
    events = {
        event.event_id: event
        for event in Event.objects.using(using).filter(event_id__in=set(chain.from_iterable(pairs)))
    }
    keys = [("m.room.create", ""), ("m.room.power_levels", "")]
    states = StoredStates((e.state_group for e in events.values() if e.state_group is not None), keys, using)
    flagged: dict[str, str] = {}
    for redaction_id, target_id in pairs:
        redaction, target = events[redaction_id], events[target_id]
        levels = None
        with suppress(EventUnreadable):  # then only redactions by the target's own server take effect
            if (before := states.state(redaction.state_group)) is not None:
                levels = AuthRules(version).levels(before, before.get(keys[0]))
        if may_redact(redaction, target, version, levels):
            flagged.setdefault(target_id, redaction_id)
    if flagged:
        rows.flag_redacted(flagged)
    return [events[target_id] for target_id in flagged]


def restore_visibility(cursor: Any, room_id: str, ranges: Iterable[Sequence[Archived]], using: str) -> bool:
    """Computes the room's ranges again if archived ``ranges``, given in batches, are lost.

    A purge keeps the ranges of the events that it deletes. They are lost only if the room was resynced or created again
    after the purge. Returns true if the ranges were computed again and are known.
    """
    cursor.execute(CHANGE_ROOM, [room_id])
    if not any(_are_lost(cursor, room_id, some) for some in ranges):
        return False
    rebuild_visibility(room_id, using)
    return EventVisibility.objects.using(using).filter(room_id=room_id).exists()


def _are_lost(cursor: Any, room_id: str, ranges: Sequence[Archived]) -> bool:
    columns = {f"{name}s": [row[name] for row in ranges] for name in ("kind", "first", "last")}
    cursor.execute(_RANGES_LOST, {"room": room_id, "users": [row["user_id"] for row in ranges], **columns})
    return bool(cursor.fetchone()[0])
