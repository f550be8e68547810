"""Stores batches of events: events of local users, events from other servers, and old events by backfill.

``persist`` takes events in any order, of any rooms. An event is stored, or found to be a duplicate, or refused with a
reason. A stored event is accepted, rejected by the auth rules, or soft-failed. A refused event does not affect the
others. A batch is one transaction.

The rooms are locked in the order of their IDs before any position is reserved. So two batches cannot deadlock, and within
a room positions ascend in causal order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from typing import Any

from django.db import connections, transaction
from msgspec import Struct
from msgspec.structs import replace

from events.declarations import CACHE_NAME
from events.errors import EventRefused, EventUnreadable, Reason, SignaturesUnchecked
from events.format import hashes
from events.format.parsing import LINE_LIMIT_BYTES, ParsedEvent, parse_event, storable
from events.format.strict_json import decode_event, decode_plain
from events.models import Event, Room
from events.persist.counters import count_stored
from events.persist.lock_and_read import RoomFacts, RoomReading, lock_and_read
from events.persist.next_rows import Accepted, RoomChanges, next_rows
from events.persist.room_cache import StoredRoom
from events.persist.state_changes import users_of
from events.persist.write_rows import write_rooms
from events.room.event_auth import as_seen_by
from events.room.verification import KeysOf, check_signatures, proves_version
from events.room_lock import room_transaction
from events.rows import RoomRows, drop_empty_rooms, write
from events.stored_states import parsed_events
from state.rules.room_versions import ROOM_VERSIONS, RoomVersion, room_version
from streams.caches import append_invalidations
from streams.conf import stream_settings

__all__ = ["Incoming", "PersistOutcome", "Persisted", "RefusedEvent", "persist", "with_state"]

_MOST_PREV_EVENTS, _MOST_AUTH_EVENTS = 20, 10
"""Limits that other servers have, too. Without them, resolving the states of prev events could hold the room's lock long."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An incoming event: its exact bytes, and the caller's knowledge about it.

    ``room_version`` is optional for stored rooms and for create events. ``outlier``: the event's place in the graph is
    not known. ``backfilled``: the event is old and was requested.

    ``state_before`` is the room's state before the event as another server gave it: the IDs of state events. This state
    is used if prev events, or their states, are missing. The state events must be stored or be in the same batch,
    normally as outliers. A state event in ``state_before`` is ignored if its auth chain is incomplete or does not allow
    it. A stored event without a known state gets a state if it arrives again with ``state_before``.

    ``verdict`` is that of the server whose history this is, which is kept: (reason of a rejection, true if soft-failed).
    ``backfilled_at`` is the event's negative position there. A batch's backfilled events get positions in that order.
    """

    json: bytes
    room_version: str | None = None
    event_id: str | None = None
    outlier: bool = False
    backfilled: bool = False
    state_before: Sequence[str] | None = None
    verdict: tuple[str | None, bool] | None = None
    backfilled_at: int = -1


class Persisted(Struct, frozen=True, gc=False):
    """A stored event. ``rejected_reason`` and ``soft_failed`` are its verdict by the auth rules."""

    event_id: str
    room_id: str
    stream_ordering: int
    rejected_reason: str | None
    soft_failed: bool


class RefusedEvent(Struct, frozen=True):
    """An event that was not stored: its index in the batch, and the reason."""

    place: int
    error: EventRefused


@dataclass(slots=True)
class PersistOutcome:
    """The outcome of a batch.

    ``bad_content_hashes`` counts stored events whose content does not match its hash: pruned or tampered with.
    ``duplicates`` has event IDs. ``refused`` is in the order of the batch.
    """

    stored: list[Persisted] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    refused: list[RefusedEvent] = field(default_factory=list)
    bad_content_hashes: int = 0
    waiting_for_auth: list[str] = field(default_factory=list)
    """Stored events above a filled gap whose auth chains are incomplete.

    Store the missing auth events, then call ``resolve_room``.
    """
    unfinished_rooms: list[str] = field(default_factory=list)
    """Rooms in which a gap was filled, with too many events above it for one batch. Call ``resolve_room`` for them."""
    without_state: list[str] = field(default_factory=list)
    """Stored events in the graph of which the state is not known, because events below them are missing."""


def persist(
    events: Iterable[Incoming],
    using: str | None = None,
    *,
    verifier: KeysOf | None = None,
    verified: bool = False,
    history_of: str | None = None,
    as_stored: bool = False,
) -> PersistOutcome:
    """Stores a batch, as the module describes.

    Events that are stored already change nothing, so a batch may be repeated.

    Signatures are checked with the keys that ``verifier`` returns (``events.room.verification``), before anything is
    locked. An event without a needed signature is refused as ``bad-signature``. Instead of a verifier, the caller may state
    that all events are ``verified``, for instance because they were created here.

    If the events are the stored history of a server, ``history_of`` is its name. Then events of this server's users are
    never soft-failed, any number of prev and auth events is accepted, and auth events may be missing. With
    ``as_stored``, prev events of live events may be missing, too, and such an event has no known state, as in an import.
    The order of live events is then that of ``events``, even where a server has stored an event before its prev event.

    ``using`` is a database alias, by default that of the settings.

    Raises ``SignaturesUnchecked`` unless exactly one of ``verifier`` and ``verified`` is given. Raises ``InTransaction`` if
    the caller's transaction is at another isolation level than READ COMMITTED. Exceptions of ``verifier``, of the stream
    engine and of the database are passed on. After an exception nothing is stored, and a transaction of
    the caller can only be rolled back.
    """
    if (verifier is None) is not verified:
        raise SignaturesUnchecked(
            "State who checks the signatures of these events: verifier=KEYS, a callable that returns the keys of a server "
            "(events.room.verification), or verified=True where they are checked, or were made here; not both."
        )
    alias = using or stream_settings().database
    batch = list(events)
    outcome = PersistOutcome()
    parsed = _parse(batch, outcome, alias, verifier, is_history=history_of is not None)
    if history_of is not None:
        parsed = [_Placed(p.place, as_seen_by(p.event, history_of), p.state_before) for p in parsed]
    # Everything above runs without a lock, because a verifier may fetch keys from other servers. What it read of rooms is only
    # their version. ``_room_mismatch`` compares the version again under the lock: A reads it, B's create event corrects it and
    # commits, and A's events are refused instead of being stored by the rules of the wrong version.
    if parsed:
        accepts = Accepted(unproven=history_of is not None, as_stored=as_stored)
        with room_transaction(alias) as is_new:
            for some in _runs(parsed) if as_stored else [parsed]:
                # The history of a server comes in a transaction that was begun for this call.
                _store(some, outcome, alias, accepts, by_index=as_stored or is_new)
    outcome.refused.sort(key=lambda refused: refused.place)
    return outcome


def with_state(event: Incoming, state: Iterable[bytes], auth_chain: Iterable[bytes] = ()) -> list[Incoming]:
    """Returns the batch that stores ``event`` on top of the given state.

    ``state`` and ``auth_chain`` hold the exact bytes of events. Unreadable events stay in the batch, so that
    ``persist`` refuses them with a reason, but they are no part of the state. A state event is ignored unless every
    event of its auth chain is stored or is in one of the arguments. Raises ``ValueError`` without
    ``event.room_version``.
    """
    if event.room_version is None:
        raise ValueError("Give the room version: how to read the state depends on it.")
    version = event.room_version
    texts = list(state)
    known = [event_id for text in texts if (event_id := _event_id(text, version)) is not None]
    outliers = [Incoming(text, version, outlier=True) for text in dict.fromkeys([*auth_chain, *texts])]
    return [*outliers, replace_field(event, state_before=tuple(dict.fromkeys(known)))]


def _event_id(text: bytes, version: str) -> str | None:
    try:
        return parse_event(text, decode_event(text), version).event_id
    except EventRefused:
        return None


# --- parsing ----------------------------------------------------------------------------------------------------------


class _Placed(Struct, frozen=True):
    place: int
    event: ParsedEvent
    state_before: Sequence[str] | None


def _parse(
    batch: Sequence[Incoming], outcome: PersistOutcome, using: str, verifier: KeysOf | None, *, is_history: bool
) -> list[_Placed]:
    """Returns the parsed events, each once.

    Adds refused events and duplicates to ``outcome``.

    Copies with the same ID, room and room version become one event. It has a place in the graph if a copy has one, and
    a content that matches its hash if a copy has one: the others' may be pruned or tampered with.
    """
    decoded: list[tuple[int, Incoming, dict[str, Any]]] = []
    plain: set[int] = set()
    for place, incoming in enumerate(batch):
        try:
            # Checked first, because no other limit covers ``unsigned``, which is stored and read with the event.
            if (size := len(incoming.json)) > LINE_LIMIT_BYTES:
                raise EventRefused(Reason.TOO_LARGE, f"{size} bytes as it came; at most {LINE_LIMIT_BYTES} are taken")
            if (event := decode_plain(incoming.json)) is not None:
                plain.add(place)
            decoded.append((place, incoming, decode_event(incoming.json) if event is None else event))
        except EventRefused as error:
            outcome.refused.append(RefusedEvent(place, error))
    versions = _versions(decoded, using, verifier)
    parsed: list[_Placed] = []
    for place, incoming, event in decoded:
        try:
            found_event = _parsed(incoming, event, versions, plain=place in plain)
            if not is_history:
                _check_references(found_event)
            parsed.append(_Placed(place, found_event, incoming.state_before))
        except EventRefused as error:
            outcome.refused.append(RefusedEvent(place, error))
    found: dict[tuple[str, str, str], _Placed] = {}
    # Signatures of every copy are checked, because an event's ID does not cover them.
    refusals = [None] * len(parsed) if verifier is None else check_signatures([p.event for p in parsed], verifier)
    for placed, refusal in zip(parsed, refusals, strict=True):
        if refusal is not None:
            outcome.refused.append(RefusedEvent(placed.place, refusal))
            continue
        event_id = placed.event.event_id
        key = event_id, placed.event.room_version, placed.event.room_id
        if key in found:
            outcome.duplicates.append(event_id)
        found[key] = _merged_copies(found[key], placed) if key in found else placed
    return list(found.values())


def _merged_copies(first: _Placed, other: _Placed) -> _Placed:
    # The sort is stable: of two equal copies the first copy stays.
    copies = sorted((first, other), key=lambda copy: (copy.event.outlier, not copy.event.content_hash_matches))
    kept, left = copies
    if kept.event.content_hash_matches or not left.event.content_hash_matches:
        return kept
    return replace(kept, event=_at_place_of(kept.event, left.event)) if _is_same(kept.event, left.event) else kept


def _at_place_of(placed: ParsedEvent, content: ParsedEvent) -> ParsedEvent:
    return replace(
        content,
        outlier=placed.outlier,
        stream_ordering=placed.stream_ordering,
        rejected_reason=placed.rejected_reason,
        soft_failed=placed.soft_failed,
        rejection_given=placed.rejection_given,
        soft_failure_given=placed.soft_failure_given,
    )


def _is_same(event: ParsedEvent, other: ParsedEvent) -> bool:
    # Before room version 3 senders choose the IDs, so different events may have the same ID.
    version = room_version(event.room_version)
    return version.ids_are_hashes or _reference_hash(event, version) == _reference_hash(other, version)


def _reference_hash(event: ParsedEvent, version: RoomVersion) -> str:
    return hashes.reference_hash(decode_event(event.json), version)


def _versions(
    decoded: Sequence[tuple[int, Incoming, dict[str, Any]]], using: str, verifier: KeysOf | None
) -> dict[str, str]:
    # by room ID, for stored rooms and for rooms whose version the batch states
    without_version = [event for _, incoming, event in decoded if incoming.room_version is None]
    if not without_version:
        return {}
    rooms = {event["room_id"] for event in without_version if _is_room_id(event.get("room_id"))}
    versions = dict(Room.objects.using(using).filter(room_id__in=rooms).values_list("room_id", "room_version"))
    creates: list[ParsedEvent] = []
    for _, incoming, event in decoded:
        if event.get("type") != "m.room.create" or not _is_room_id(event.get("room_id")):
            continue
        if isinstance(incoming.room_version, str):
            versions.setdefault(event["room_id"], incoming.room_version)
        elif event["room_id"] not in versions and (create := _version_proof(incoming.json, event)) is not None:
            creates.append(create)
    unsigned = check_signatures(creates, verifier) if creates and verifier is not None else [None] * len(creates)
    for create, refusal in zip(creates, unsigned, strict=True):
        if refusal is None:
            versions.setdefault(create.room_id, create.room_version)
    return versions


def _version_proof(json: bytes, event: dict[str, Any]) -> ParsedEvent | None:
    # Parses a create event by the version that it claims. None unless its hash proves that claim. Signatures are not
    # checked.
    try:
        create = parse_event(json, event, _claimed_version(event))
    except EventRefused:
        return None
    return create if proves_version(create) else None


def _claimed_version(create: dict[str, Any]) -> Any:
    content = create.get("content")
    return content.get("room_version", "1") if isinstance(content, dict) else "1"


def _is_room_id(value: Any) -> bool:
    try:
        return storable(value, "room_id").startswith("!")
    except EventRefused:
        return False


def _parsed(incoming: Incoming, event: dict[str, Any], versions: dict[str, str], *, plain: bool) -> ParsedEvent:
    version: Any = incoming.room_version
    room_id = event.get("room_id")
    if version is None and isinstance(room_id, str):
        version = versions.get(room_id)
        if version is None and event.get("type") != "m.room.create":
            raise EventRefused(Reason.UNKNOWN_ROOM, f"no room {room_id!r} is stored: begin with its create event")
    if version is None:
        version = _claimed_version(event)
        if isinstance(version, str) and version in ROOM_VERSIONS and _version_proof(incoming.json, event) is None:
            parse_event(
                incoming.json, event, version, incoming.event_id
            )  # raises first if the event has another defect
            detail = (
                "the create event does not fit its hash, or is not of the room's server: give the room_version with it"
            )
            raise EventRefused(Reason.UNKNOWN_ROOM_VERSION, detail)
    parsed = parse_event(incoming.json, event, version, incoming.event_id, plain=plain)
    _check_given(incoming.state_before)
    if incoming.verdict is not None:
        reason, soft_failed = incoming.verdict
        parsed = replace(
            parsed,
            rejected_reason=reason if reason is None else storable(reason, "rejected_reason", limit_bytes=None),
            soft_failed=soft_failed,
            rejection_given=True,
            soft_failure_given=True,
        )
    if not (incoming.outlier or incoming.backfilled):
        return parsed
    place = incoming.backfilled_at if incoming.backfilled else None
    return replace(parsed, outlier=incoming.outlier, stream_ordering=place)


def _check_references(event: ParsedEvent) -> None:
    for kind, named, most in (
        ("prev", event.prev_event_ids, _MOST_PREV_EVENTS),
        ("auth", event.auth_event_ids, _MOST_AUTH_EVENTS),
    ):
        if len(named) > most:
            raise EventRefused(Reason.BAD_REFERENCE, f"{len(named)} {kind} events; at most {most} are taken")


def _check_given(event_ids: Any) -> None:
    # another server may have sent anything
    if event_ids is None:
        return
    if isinstance(event_ids, str | bytes) or not isinstance(event_ids, Sequence):
        raise EventRefused(Reason.WRONG_TYPE, f"state_before is {event_ids!r:.100} and should be a list of event IDs")
    for event_id in event_ids:
        storable(event_id, "an entry of state_before")


def _runs(parsed: Sequence[_Placed]) -> list[list[_Placed]]:
    """Divides a batch so that each run can be stored in the given order: live events first, then backfilled ones.

    A run ends before a prev event of one of its events. That event was stored above a gap, which the next run fills. It
    also ends before an event of a room of which it has an outlier, because outliers get their positions last.
    """
    runs: list[list[_Placed]] = []
    missing, rooms = set[str](), set[str]()
    for placed in parsed:
        event = placed.event
        if event.backfilled:
            continue
        if not runs or event.event_id in missing or (event.room_id in rooms and not event.outlier):
            runs.append([])
            missing, rooms = set(), set()
        runs[-1].append(placed)
        if event.outlier:
            rooms.add(event.room_id)
        else:
            missing.update(event.prev_event_ids)
    old = [placed for placed in parsed if placed.event.backfilled]
    return [*runs, old] if old else runs


# --- storing ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _ToProcess:
    """The events of a batch that have to be processed, and the states before them that other servers gave, by room.

    ``to_resolve`` has the IDs of stored events that have no state although their prev events have one. Auth events that
    these events lacked may be stored now. ``places`` maps event IDs to indexes in the batch. They are kept by room,
    because before room version 3 senders choose the IDs, and two rooms may have events with the same ID.
    """

    by_room: dict[str, list[ParsedEvent]] = field(default_factory=dict)
    given: dict[str, dict[str, Sequence[str]]] = field(default_factory=dict)
    to_resolve: dict[str, list[str]] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    rooms: dict[str, str] = field(default_factory=dict)

    def add(self, placed: _Placed, *, stored: bool) -> None:
        # ``stored``: the event's row exists already, but has no state yet. Only its ID and its given state are added.
        event = placed.event
        self.places.setdefault(event.event_id, placed.place)
        self.rooms[event.event_id] = event.room_id
        events = self.by_room.setdefault(event.room_id, [])
        if stored:
            self.to_resolve.setdefault(event.room_id, []).append(event.event_id)
        else:
            events.append(event)
        if placed.state_before is not None and not event.outlier:
            self.given.setdefault(event.room_id, {})[event.event_id] = placed.state_before


def _store(
    parsed: Sequence[_Placed], outcome: PersistOutcome, using: str, accepts: Accepted, *, by_index: bool
) -> None:
    needs_groups = any(_may_need_group(placed) for placed in parsed)
    reading = lock_and_read([placed.event for placed in parsed], using, needs_groups=needs_groups, by_index=by_index)
    parsed, rewritten = _with_stored_content(parsed, reading, outcome, using)
    to_process, known = _events_to_process(parsed, reading, outcome), reading.events
    computed = []
    # In the order of the IDs, as the rows were locked. Positions are reserved in this order in ``write_rooms``, under all locks.
    for room_id, events in sorted(to_process.by_room.items()):
        room = StoredRoom(reading.rooms[room_id], using, reading)
        given, to_resolve = to_process.given.get(room_id), to_process.to_resolve.get(room_id, ())
        try:
            changes = next_rows(room, events, given, to_resolve=to_resolve, accepts=accepts)
            computed.append((room, changes))
        except EventUnreadable as error:  # the rules cannot be applied in this room
            refusal = EventRefused(Reason.BAD_STATE, str(error))
            outcome.refused += [RefusedEvent(to_process.places[event.event_id], refusal) for event in events]
    positions = write_rooms(
        computed, {event_id for event_id in reading.batch_ids & known.keys() if known[event_id].outlier}, using
    )
    if rewritten := [event for event in rewritten if event.event_id in positions]:
        _rewrite_json(rewritten, using)
    _delete_empty_rooms(reading, {room.room_id for room, changes in computed if changes.events}, using)
    # After the commit only: events of a rolled-back batch must neither be kept by this process nor be counted.
    transaction.on_commit(lambda: _cache_and_count(computed), using=using)
    for room, changes in computed:
        outcome.waiting_for_auth += changes.filled.waiting
        if changes.filled.more:
            outcome.unfinished_rooms.append(room.room_id)
        outcome.refused += [RefusedEvent(to_process.places[event.event_id], error) for event, error in changes.refused]
        for event in changes.events:
            outcome.bad_content_hashes += not event.content_hash_matches
            if not event.outlier and event.event_id not in room.after:
                outcome.without_state.append(event.event_id)
            outcome.stored.append(
                Persisted(
                    event.event_id, event.room_id, positions[event.event_id], event.rejected_reason, event.soft_failed
                )
            )


def _delete_empty_rooms(reading: RoomReading, stored: Collection[str], using: str) -> None:
    empty = [
        room_id for room_id, room in reading.rooms.items() if room.create_event_id is None and room_id not in stored
    ]
    if empty:  # under the lock, so no other batch stores an event in them meanwhile
        with connections[using].cursor() as cursor:
            drop_empty_rooms(cursor, empty)


def _with_stored_content(
    parsed: Sequence[_Placed], reading: RoomReading, outcome: PersistOutcome, using: str
) -> tuple[Sequence[_Placed], list[ParsedEvent]]:
    """Returns the batch, and the events whose JSON replaces stored JSON: of outliers that got their place in the graph.

    The new content replaces the stored content only if it matches its hash and the stored one does not. An outlier that
    was stored under another room version, before the room's version was known, is parsed again. The stored JSON of a
    redacted event is not replaced.
    """
    known = reading.events
    moved = [p for p in parsed if not p.event.outlier and (f := known.get(p.event.event_id)) and f.outlier]
    if not moved:
        return parsed, []
    stored = parsed_events([p.event.event_id for p in moved], using)
    redacted = Event.objects.using(using).filter(event_id__in=stored, redacted_by__isnull=False)
    censored = set(redacted.values_list("event_id", flat=True))
    found: list[_Placed] = []
    rewritten: list[ParsedEvent] = []
    for placed in parsed:
        event = placed.event
        kept = None if event.outlier else stored.get(event.event_id)
        if kept is None or kept.room_id != event.room_id:
            found.append(placed)
        elif not _is_same(kept, event):
            detail = f"{event.event_id} is the ID of another event that is stored"
            outcome.refused.append(RefusedEvent(placed.place, EventRefused(Reason.WRONG_EVENT_ID, detail)))
        elif kept.room_version != event.room_version or (event.content_hash_matches and not kept.content_hash_matches):
            event = _with_better_content(event, kept)
            found.append(replace(placed, event=event))
            if event.event_id not in censored:
                rewritten.append(event)
        else:
            found.append(replace(placed, event=_at_place_of(event, kept)))
    return found, rewritten


def _with_better_content(event: ParsedEvent, kept: ParsedEvent) -> ParsedEvent:
    # with the content of the stored copy if only this content matches its hash
    if event.content_hash_matches:
        return event
    try:
        again = parse_event(kept.json, decode_event(kept.json), event.room_version, event.event_id)
    except EventRefused:
        return event
    return _at_place_of(event, again) if again.content_hash_matches else event


def _rewrite_json(events: Sequence[ParsedEvent], using: str) -> None:
    rows = RoomRows()
    for event in events:
        rows.change("events_eventjson", event.event_id, json=event.json, room_version=event.room_version)
        rows.stale.append((CACHE_NAME, [event.event_id]))
        if event.state_key is not None:  # it may be an entry of the current state
            rows.drop_state(event.room_id, users_of(event.type, event.state_key))
    with connections[using].cursor() as cursor:
        write(cursor, rows)
    append_invalidations(rows.stale, using)


def _events_to_process(parsed: Sequence[_Placed], reading: RoomReading, outcome: PersistOutcome) -> _ToProcess:
    # A stored event is a duplicate. One of another room or room version than its own, or of an unknown room, is
    # refused.
    to_process = _ToProcess()
    for placed in parsed:
        event = placed.event
        stored = reading.events.get(event.event_id)
        owner = to_process.rooms.get(event.event_id) if stored is None else stored.room_id
        if owner not in (None, event.room_id):
            detail = f"{event.event_id} is the ID of an event of {owner}"
            outcome.refused.append(RefusedEvent(placed.place, EventRefused(Reason.WRONG_EVENT_ID, detail)))
        elif stored is not None and (event.outlier or not stored.outlier):
            # Stored already, perhaps by a transaction for which this one waited: A and B get the same event, A locks the room and
            # stores it, and B finds it in what it reads under the lock. Only a stored outlier that arrives with its place in the
            # graph is processed as a new event.
            outcome.duplicates.append(event.event_id)
            if stored.state_unresolved and (placed.state_before is not None or _prevs_have_states(event, reading)):
                to_process.add(placed, stored=True)
        elif (error := _room_mismatch(event, reading.rooms.get(event.room_id))) is not None:
            outcome.refused.append(RefusedEvent(placed.place, error))
        else:
            to_process.add(placed, stored=False)
    return to_process


def _prevs_have_states(event: ParsedEvent, reading: RoomReading) -> bool:
    below = [reading.events.get(prev) for prev in event.prev_event_ids]
    return bool(below) and all(stored is not None and stored.state_group is not None for stored in below)


def _room_mismatch(event: ParsedEvent, room: RoomFacts | None) -> EventRefused | None:
    if room is None:
        return EventRefused(Reason.UNKNOWN_ROOM, f"no room {event.room_id} is stored: begin with its create event")
    if room.room_version != event.room_version:
        detail = f"room {room.room_id} is of version {room.room_version}, not {event.room_version}"
        return EventRefused(Reason.WRONG_ROOM_VERSION, detail)
    return None


def _may_need_group(placed: _Placed) -> bool:
    # A live message with exactly one prev event and without a given state needs no new state group.
    event = placed.event
    return (
        event.state_key is not None
        or len(event.prev_event_ids) != 1
        or event.backfilled
        or placed.state_before is not None
    )


def _cache_and_count(computed: Sequence[tuple[StoredRoom, RoomChanges]]) -> None:
    for room, changes in computed:
        for event in changes.events:
            room.events.cache_new(event)
    count_stored([changes for _, changes in computed], stream_settings().server_name)
