"""Restores archived events of a room at their old positions, some thousand in each transaction, from the latest down.

The events come in a temporary table with the columns of an archive. They get their old stream positions, so clients and
named readers do not take them for new events, and the stored visibility ranges still apply to them. Their JSON is
stored as archived, but redacted if it does not match its hash.

Stored events stay as they are, because they may have been redacted, censored or backfilled since. Only an outlier that
had a place in the graph gets that place back. A redaction that came while its target was not stored is applied. After
every transaction the room looks like a room whose history begins a little lower.

State groups are stored first, under new IDs. An archive has all groups on which the groups of its events build, so no
stored group is changed. Assumes that the caller opens a transaction for each call, and that no purge of the room runs
meanwhile (``events.maintenance.purge_lock``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.db import connections

from events.columns import EVENT_COLUMNS, INSERT_INTO
from events.declarations import CACHE_NAME
from events.errors import EventRefused, EventUnreadable, PositionsTaken, Reason
from events.format.parsing import Verdict, parse_stored
from events.format.redaction import may_redact
from events.format.strict_json import decode_event
from events.maintenance.purge_batch import recompute_current_state
from events.models import Event, EventVisibility
from events.persist.state_changes import users_of
from events.room_lock_sql import CHANGE_ROOM
from events.stored_states import StoredStates
from events.visibility.rebuild import rebuild_visibility
from state.rules.auth_rules import AuthRules
from state.rules.room_versions import room_version
from streams.caches import invalidate, invalidate_room_state
from streams.holds.hold import CHANGE_FACTS

#: Name -> columns of the temporary tables that the caller fills. Each is emptied in its transaction, except
#: ``restored_hole``.
TEMPORARY = {
    "restored_event": (
        'event_id text COLLATE "C", room_version text, json bytea, stream_ordering bigint, instance_name text, '
        "received_us bigint, type text, state_key text, sender text, topological_ordering bigint, origin_server_ts bigint, "
        "membership text, redacts text, relates_to text, outlier boolean, rejected_reason text, soft_failed boolean, "
        "redacted_by text, state_unresolved boolean, censored_us bigint, state_group bigint, "
        'prev_event_ids text[] COLLATE "C", auth_event_ids text[] COLLATE "C"'
    ),
    "restored_group": "id bigint, prev_group bigint, chain bigint, hops bigint, keys bigint, rows_to_read bigint",
    "restored_delta": "chain bigint, state_group bigint, type text, state_key text, event_id text",
    "restored_leaf": 'event_id text COLLATE "C"',
    "restored_hole": "stream_ordering bigint, instance_name text",
    "restored_visibility": "user_id text, kind text, first bigint, last bigint",
    "restored_current": "type text, state_key text, event_id text, membership text",
    "restored_change": (
        "stream_ordering bigint, instance_name text, received_us bigint, type text, state_key text, event_id text, "
        "prev_event_id text"
    ),
    "restored_room": (
        "room_id text, room_version text, creator text, create_event_id text, current_state_unresolved boolean, "
        "visibility_unresolved boolean"
    ),
}
_EVENT_COPIED = ", ".join(name for name in EVENT_COLUMNS if name not in ("event_id", "room_id", "state_group"))
_TIME = "to_timestamp(0) + {} * interval '1 microsecond'"

_MAP_GROUPS = """
INSERT INTO {mapping} (archived, id)
SELECT id, nextval(pg_get_serial_sequence('state_stategroup', 'id')) FROM (SELECT id FROM restored_group ORDER BY id) AS ordered
"""
_GROUPS = f"""
{INSERT_INTO["state_stategroup"]}
SELECT own.id, %s, prev.id, chain.id, g.hops, g.keys, g.rows_to_read
FROM restored_group g JOIN {{mapping}} own ON own.archived = g.id JOIN {{mapping}} chain ON chain.archived = g.chain
LEFT JOIN {{mapping}} prev ON prev.archived = g.prev_group
"""
_DELTAS = f"""
{INSERT_INTO["state_stategroupdelta"]}
SELECT chain.id, own.id, d.type, d.state_key, d.event_id
FROM restored_delta d JOIN {{mapping}} own ON own.archived = d.state_group JOIN {{mapping}} chain ON chain.archived = d.chain
"""
_USE_INDEXES = "SET LOCAL enable_seqscan = off"
_USED_POSITION = """
SELECT e.event_id, e.stream_ordering FROM events_event e JOIN restored_event r USING (stream_ordering)
WHERE e.stream_ordering = ANY(ARRAY(SELECT stream_ordering FROM restored_event)) AND e.event_id <> r.event_id LIMIT 1
"""
#: The events that change here: new ones, and stored outliers that had a place in the graph. All others stay as they
#: are.
_FATES = """
CREATE TEMPORARY TABLE restored_fate ON COMMIT DROP AS
SELECT r.event_id, e.event_id IS NULL AS is_new, e.stream_ordering AS stored_at, r.outlier FROM restored_event r
LEFT JOIN (
    SELECT event_id, outlier, stream_ordering, room_id FROM events_event
    WHERE event_id = ANY(ARRAY(SELECT event_id FROM restored_event))
) AS e USING (event_id)
WHERE e.event_id IS NULL OR (e.outlier AND NOT r.outlier AND e.room_id = %(room)s)
"""
_EVENTS = f"""
INSERT INTO events_event (stream_ordering, instance_name, received_at, event_id, room_id, {_EVENT_COPIED}, censored_at,
    state_group)
SELECT r.stream_ordering, r.instance_name, {_TIME.format("r.received_us")}, r.event_id, %(room)s,
    {_EVENT_COPIED.replace("outlier", "r.outlier")},
    {_TIME.format("r.censored_us")}, map.id
FROM restored_event r JOIN restored_fate fate USING (event_id) LEFT JOIN {{mapping}} map ON map.archived = r.state_group
WHERE fate.is_new
"""
_JSON = f"""
{INSERT_INTO["events_eventjson"]}
SELECT r.event_id, r.room_version, r.json FROM restored_event r JOIN restored_fate fate USING (event_id)
WHERE fate.is_new AND r.json IS NOT NULL ON CONFLICT (event_id) DO NOTHING
"""
_AUTH = f"""
{INSERT_INTO["events_eventauth"]}
SELECT r.event_id, r.auth_event_ids FROM restored_event r JOIN restored_fate fate USING (event_id)
WHERE fate.is_new AND r.auth_event_ids IS NOT NULL ON CONFLICT (event_id) DO NOTHING
"""
_PLACES = """
UPDATE events_event e SET outlier = false, state_group = map.id, state_unresolved = r.state_unresolved,
    stream_ordering = r.stream_ordering, instance_name = r.instance_name
FROM restored_event r JOIN restored_fate fate USING (event_id) LEFT JOIN {mapping} map ON map.archived = r.state_group
WHERE NOT fate.is_new AND e.stream_ordering = fate.stored_at
"""
_EDGES = f"""
{INSERT_INTO["events_eventedge"]}
SELECT r.event_id, prev FROM restored_event r JOIN restored_fate fate USING (event_id) CROSS JOIN unnest(r.prev_event_ids) AS prev
WHERE NOT r.outlier ON CONFLICT (event_id, prev_event_id) DO NOTHING
"""
_OLD_GAPS = """
DELETE FROM events_backwardextremity WHERE room_id = %(room)s
  AND event_id = ANY(ARRAY(SELECT event_id FROM restored_fate WHERE NOT outlier))
"""
#: Prev events of restored events that are missing, or here only as outliers.
_BELOW = """
CREATE TEMPORARY TABLE restored_below ON COMMIT DROP AS
SELECT r.event_id, r.stream_ordering, r.instance_name, prev FROM restored_event r JOIN restored_fate fate USING (event_id)
CROSS JOIN unnest(r.prev_event_ids) AS prev
WHERE NOT r.outlier
  AND NOT EXISTS (SELECT FROM events_event e WHERE e.event_id = prev AND e.room_id = %(room)s AND NOT e.outlier)
"""
_NEW_GAPS = f"""
{INSERT_INTO["events_backwardextremity"]} SELECT DISTINCT %(room)s, prev FROM restored_below
ON CONFLICT (room_id, event_id) DO NOTHING
"""
_NEW_HOLES = f"""
{INSERT_INTO["events_timelinegap"]}
SELECT DISTINCT %(room)s, stream_ordering, instance_name FROM restored_below WHERE stream_ordering > 0
UNION
SELECT %(room)s, hole.stream_ordering, hole.instance_name FROM restored_hole hole JOIN restored_event r USING (stream_ordering)
JOIN restored_fate fate ON fate.event_id = r.event_id
ON CONFLICT (room_id, stream_ordering) DO NOTHING
"""
#: Deletes timeline gaps that a purge made: at events of which no prev event is missing any more, and all prev events
#: came first. If a prev event came later or by backfill, the gap stays: clients that have synced across it still have
#: to ask for that prev event.
_OLD_HOLES = """
DELETE FROM events_timelinegap hole USING (
    SELECT e.event_id, e.stream_ordering FROM events_eventedge edge JOIN events_event e USING (event_id)
    WHERE edge.prev_event_id = ANY(ARRAY(SELECT event_id FROM restored_fate WHERE NOT outlier)) AND e.room_id = %(room)s
    UNION
    SELECT event_id, r.stream_ordering FROM restored_event r JOIN restored_fate USING (event_id)
) AS above
WHERE hole.room_id = %(room)s AND hole.stream_ordering = above.stream_ordering AND NOT EXISTS (
    SELECT FROM events_eventedge edge LEFT JOIN events_event e ON e.event_id = edge.prev_event_id AND e.room_id = %(room)s
    WHERE edge.event_id = above.event_id
      AND (e.outlier IS NOT FALSE OR e.stream_ordering < 0 OR e.stream_ordering > above.stream_ordering))
"""
_LEAVES = f"""
{INSERT_INTO["events_forwardextremity"]}
SELECT leaf.event_id, %(room)s FROM restored_leaf leaf JOIN restored_fate fate USING (event_id)
JOIN events_event own ON own.event_id = leaf.event_id AND NOT own.outlier
WHERE NOT EXISTS (
    SELECT FROM events_eventedge edge JOIN events_event e USING (event_id)
    WHERE edge.prev_event_id = leaf.event_id AND e.room_id = %(room)s AND NOT e.outlier AND NOT e.soft_failed
      AND e.rejected_reason IS NULL)
ON CONFLICT (event_id) DO NOTHING
"""
#: A restored event may build on a forward extremity, if it claims a lower depth than that.
_HAS_EDGE_TO_EXTREMITY = """
SELECT EXISTS (
    SELECT FROM events_forwardextremity leaf JOIN events_eventedge edge ON edge.prev_event_id = leaf.event_id
    JOIN events_event e ON e.event_id = edge.event_id
    WHERE leaf.room_id = %(room)s AND e.room_id = %(room)s AND NOT e.outlier)
"""
#: If the state at a live event is unknown, the room's visibility ranges cannot be known.
_NO_RANGES = """
WITH room AS (
    UPDATE events_room SET visibility_unresolved = true WHERE room_id = %(room)s AND EXISTS (
        SELECT FROM restored_fate fate JOIN events_event e ON e.event_id = fate.event_id
        WHERE e.state_unresolved AND NOT e.outlier AND NOT e.soft_failed AND e.rejected_reason IS NULL
          AND e.stream_ordering > 0)
    RETURNING room_id
) DELETE FROM events_eventvisibility v USING room WHERE v.room_id = room.room_id
"""
#: Redactions that came while their targets were not stored, in stream order. The first that applies is recorded.
_LATE_REDACTIONS = """
SELECT redaction.event_id, target.event_id
FROM events_event redaction JOIN events_event target ON target.event_id = redaction.redacts
WHERE redaction.redacts = ANY(ARRAY(SELECT event_id FROM restored_fate WHERE is_new)) AND target.redacted_by IS NULL
  AND redaction.room_id = %(room)s AND NOT redaction.outlier AND NOT redaction.soft_failed AND redaction.rejected_reason IS NULL
ORDER BY redaction.stream_ordering
"""
_REDACTED = "UPDATE events_event SET redacted_by = %s WHERE event_id = %s AND redacted_by IS NULL"
#: Text that is no JSON, so that `room check` reports it, in place of bytes that are no text: the table refuses those.
_ESCAPE = "UPDATE restored_event SET json = convert_to(encode(json, 'escape'), 'UTF8') WHERE event_id = %s"
_REDACT = "UPDATE restored_event SET json = %s, redacts = %s, relates_to = %s WHERE event_id = %s"
#: The room's row comes before its events, so its name could not be read then.
_NAME = "SELECT events_name_rooms(ARRAY[%(room)s])"
_OF_ANOTHER_EVENT = (Reason.WRONG_EVENT_ID, Reason.DUPLICATE_KEY)
"""Reasons that show that a text is not the JSON of the event. Its content may be anything."""
_NO_VERDICT = Verdict(False, None, False, None, True, True)
_COUNTS = "SELECT count(*) FILTER (WHERE is_new), count(*) FILTER (WHERE NOT is_new) FROM restored_fate"

#: Inserts a room that is not here. Its content generation comes from the clock, so that it is one that the room never
#: had, and no process uses what it cached of the room's former content.
_ROOM = (
    CHANGE_FACTS,
    "DELETE FROM events_purgedroom WHERE room_id = %(room)s",
    """
    INSERT INTO events_room (room_id, room_version, creator, create_event_id, current_state_unresolved, visibility_unresolved,
        content_generation)
    SELECT room_id, room_version, creator, create_event_id, current_state_unresolved, visibility_unresolved,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM restored_room
    """,
    f"""
    {INSERT_INTO["events_currentstate"]}
    SELECT %(room)s, type, state_key, event_id, membership FROM restored_current
    """,
    f"""
    INSERT INTO events_currentstatedelta (stream_ordering, instance_name, received_at, room_id, type, state_key, event_id,
        prev_event_id)
    SELECT stream_ordering, instance_name, {_TIME.format("received_us")}, %(room)s, type, state_key, event_id, prev_event_id
    FROM restored_change ORDER BY stream_ordering
    """,
    f"""
    {INSERT_INTO["events_eventvisibility"]}
    SELECT %(room)s, user_id, kind, first, last FROM restored_visibility
    """,
)
_RANGES_LOST = """
SELECT EXISTS (
    SELECT FROM restored_visibility old WHERE NOT EXISTS (
        SELECT FROM events_eventvisibility now WHERE now.room_id = %(room)s AND now.user_id IS NOT DISTINCT FROM old.user_id
          AND now.kind = old.kind AND now.first = old.first AND (now.last IS NOT DISTINCT FROM old.last OR old.last IS NULL)))
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


def copy_groups(cursor: Any, room_id: str, mapping: str) -> int:
    """Stores the groups of ``restored_group`` and ``restored_delta`` under new IDs. Returns the number of groups.

    Records the old and the new ID of each group in the table ``mapping``, in the columns ``archived`` and ``id``.
    """
    cursor.execute(_MAP_GROUPS.format(mapping=mapping))
    groups = cursor.rowcount
    cursor.execute(_GROUPS.format(mapping=mapping), [room_id])
    cursor.execute(_DELTAS.format(mapping=mapping))
    return int(groups)


def restore_room(cursor: Any, room_id: str) -> None:
    """Inserts the room itself, its current state and its ranges, for a room that is not stored.

    Call it before ``restore_events``, in the same transaction.
    """
    for statement in _ROOM:
        cursor.execute(statement, {"room": room_id})


def restore_events(room_id: str, mapping: str, using: str, done: EventsRestored, *, whole: bool = False) -> None:
    """Inserts the events of the table ``restored_event``, and counts them in ``done``.

    ``whole`` is true if the room itself was restored in this transaction, so that its current state is known already.
    Raises ``PositionsTaken`` if another event has one of the stream positions. Appends a fact to the stream ``caches``,
    except for a ``whole`` room.
    """
    names: dict[str, Any] = {"room": room_id}
    cursor: Any
    with connections[using].cursor() as cursor:
        cursor.execute(f"{CHANGE_ROOM}; {_USE_INDEXES}; {CHANGE_FACTS}", [room_id])
        _check_positions(cursor)
        cursor.execute("SELECT count(*) FROM restored_event")
        (given,) = cursor.fetchone()
        _redact_misfits(cursor)
        cursor.execute(_FATES, names)
        cursor.execute("ANALYZE restored_event; ANALYZE restored_fate")
        for statement in (
            _EVENTS,
            _JSON,
            _AUTH,
            _PLACES,
            _EDGES,
            _OLD_GAPS,
            _BELOW,
            _NEW_GAPS,
            _NEW_HOLES,
            _OLD_HOLES,
            _LEAVES,
        ):
            cursor.execute(statement.format(mapping=mapping), names)
        extremities = cursor.rowcount
        redacted = _redact_late(cursor, room_id, using)
        done.redacted += len(redacted)
        cursor.execute(_COUNTS)
        new, placed = cursor.fetchone()
        if not whole:  # the ranges of a whole room were archived with it
            cursor.execute(_NO_RANGES, names)
        cursor.execute(_HAS_EDGE_TO_EXTREMITY, names)
        if (extremities or cursor.fetchone()[0]) and not whole:
            recompute_current_state(cursor, room_id, using)
        cursor.execute(_NAME, names)
        cursor.execute("DROP TABLE restored_fate, restored_below; TRUNCATE restored_event")
    if not whole:  # after a whole room, the caller does this once for all batches
        invalidate_cached_events()
        states = [(event.type, event.state_key) for event in redacted if event.state_key is not None]
        if states:
            invalidate_room_state(room_id, [user for entry in states for user in users_of(*entry)])
    done.restored += new
    done.placed += placed
    done.here += given - new - placed


def _redact_misfits(cursor: Any) -> None:
    """Replaces JSON in ``restored_event`` by the redacted form, if the JSON does not match its content hash.

    JSON of another event, or with a duplicate key, is removed.
    """
    cursor.execute("SELECT event_id, room_version, json FROM restored_event WHERE json IS NOT NULL")
    for event_id, version, text in cursor.fetchall():
        json = bytes(text)
        try:
            decode_event(json)  # ``parse_stored`` does not look for duplicate keys
            kept = parse_stored(json, room_version(version), event_id, _NO_VERDICT, {})
        except ValueError as error:
            if isinstance(error, EventRefused) and error.reason in _OF_ANOTHER_EVENT:
                cursor.execute("UPDATE restored_event SET json = NULL WHERE event_id = %s", [event_id])
            elif not _is_text(json):
                cursor.execute(_ESCAPE, [event_id])
            continue  # other text is stored as archived, and ``room check`` reports it
        if kept.json:
            cursor.execute(_REDACT, [kept.json, kept.redacts, kept.relates_to, event_id])


def _is_text(json: bytes) -> bool:
    try:
        json.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in json


def invalidate_cached_events() -> None:
    """Appends a fact to the stream ``caches`` that makes other processes drop their cached events.

    Call it late in a transaction. The fact's position is reserved until the transaction ends, and readers cannot pass a
    reserved position.
    """
    invalidate(CACHE_NAME)


def _check_positions(cursor: Any) -> None:
    cursor.execute(_USED_POSITION)
    if found := cursor.fetchone():
        raise PositionsTaken(
            f"The stream position {found[1]} of an archived event is that of {found[0]} here: the archive is of another "
            "database. Import its events instead: manage.py import_events --as-history FOLDER/event-*.parquet"
        )


def _redact_late(cursor: Any, room_id: str, using: str) -> list[Event]:
    """Flags restored events whose redaction came while they were not stored. Returns the flagged events."""
    cursor.execute(_LATE_REDACTIONS, {"room": room_id})
    pairs: Sequence[tuple[str, str]] = cursor.fetchall()
    if not pairs:
        return []
    cursor.execute("SELECT room_version FROM events_room WHERE room_id = %s", [room_id])
    version = room_version(cursor.fetchone()[0])
    events = {
        event.event_id: event
        for event in Event.objects.using(using).filter(event_id__in=set(chain.from_iterable(pairs)))
    }
    keys = [("m.room.create", ""), ("m.room.power_levels", "")]
    states = StoredStates((e.state_group for e in events.values() if e.state_group is not None), keys, using)
    flagged: list[Event] = []
    for redaction_id, target_id in pairs:
        redaction, target = events[redaction_id], events[target_id]
        levels = None
        with suppress(EventUnreadable):  # then only redactions by the target's own server take effect
            if (before := states.state(redaction.state_group)) is not None:
                levels = AuthRules(version).levels(before, before.get(keys[0]))
        if may_redact(redaction, target, version, levels):
            cursor.execute(_REDACTED, [redaction_id, target_id])
            flagged += [target] * cursor.rowcount
    return flagged


def restore_visibility(cursor: Any, room_id: str, using: str) -> bool:
    """Computes the room's ranges again if the ranges of restored events are lost.

    A purge keeps the ranges of the events that it deletes. They are lost only if the room was resynced or created again
    after the purge. Returns true if the ranges were computed again and are known.
    """
    cursor.execute(CHANGE_ROOM, [room_id])
    cursor.execute(_RANGES_LOST, {"room": room_id})
    if not cursor.fetchone()[0]:
        return False
    rebuild_visibility(room_id, using)
    return EventVisibility.objects.using(using).filter(room_id=room_id).exists()
