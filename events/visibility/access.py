"""Decides the parts of visibility that depend on the time of reading: room access, ignored senders, retention, erasure.

Room state decides whether a user may see an event (``events.visibility.predicate_sql``). This module handles what can change
without a new event:

* *access*: joined users read the room. Users who have left read it up to their leave, unless they have forgotten it. All
  others may *peek* into a room whose current state makes it world-readable;
* messages of *ignored* senders are left out;
* messages older than the room's *retention* are left out (``m.room.retention`` in the current state, the site's default, and
  its limits);
* events of *erased* senders are redacted for users who were not joined at the event.

``read_access`` answers for any number of rooms in one query. ``access_parameters`` turns its answer into the access rows of
``events.visibility.predicate_sql``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db import connections

from events.arguments import can_be_stored, checked_ids
from events.declarations import RESYNC_USER
from events.errors import CannotForget, NotReadable, UnknownRoom
from events.format.parsing import storable
from events.format.strict_json import decode_stored
from events.models import CurrentState, ErasedUser, ForgottenRoom, IgnoredUser
from streams import registry
from streams.caches import invalidate
from streams.catalog.models import AccountDataChange
from streams.conf import StreamSettings, stream_settings
from streams.db.driver import rows_of_repeated
from streams.db.snapshots import seeing_commits
from streams.writing.key_locks import lock_exclusively

__all__ = [
    "IGNORED_USERS_LIMIT",
    "IGNORED_USER_LIST",
    "ROOMS_LIMIT",
    "Access",
    "Reach",
    "access_of",
    "access_parameters",
    "access_to_events",
    "erase_user",
    "forget_room",
    "ignored_users_in",
    "max_lifetime_ms",
    "read_access",
    "require_readable",
    "set_ignored_users",
    "unerase_user",
    "unforget_room",
]

IGNORED_USER_LIST = "m.ignored_user_list"
IGNORED_USERS_LIMIT = 10_000
ROOMS_LIMIT = 10_000
_ROWS_OF_LOCKS = 64
"""Rows that lock lists of ignored users. A hash assigns each user to one of them."""
_NO_USER = ""
"""A user ID in place of one that cannot be stored. It is in no room."""

#: Selects how a user may read rooms. A room that is not stored has no row. The function's plan is kept for the connection.
_ACCESS = "SELECT * FROM events_access(%(user)s, %(rooms)s::text[])"
#: The same for the rooms of some events.
_ACCESS_TO_EVENTS = """
SELECT * FROM events_access(%(user)s, ARRAY(
  SELECT DISTINCT e.room_id::text FROM events_event e WHERE e.event_id = ANY(%(events)s::text[])))
"""


class Reach(StrEnum):
    """The way in which a user has access to an event, or the reason why they have none, as a stable word."""

    MEMBER = "member"
    BEFORE_LEAVE = "before_leave"
    PEEKING = "peeking"
    AFTER_LEAVE = "after_leave"
    FORGOTTEN = "forgotten"
    NOT_A_MEMBER = "not_a_member"
    OUTLIER = "outlier"
    UNKNOWN = "unknown"

    @property
    def within(self) -> bool:
        return self in (Reach.MEMBER, Reach.BEFORE_LEAVE, Reach.PEEKING)


@dataclass(frozen=True, slots=True)
class Access:
    """The present access of a user to a room.

    ``known`` is false if visibility cannot be computed, because of a gap. ``peeking``: the user is no member, and sees
    world-readable events, and shared events from the time when they were joined. ``recorded``: the user has a
    membership event in the room.
    """

    room_id: str
    known: bool
    readable: bool
    peeking: bool
    recorded: bool
    cut: int | None
    """The stream position of the user's leave. The user has no access to events above it. None: no limit."""
    cut_depth: int | None
    """The topological position of the user's leave. The user has no access to backfilled events above it."""
    membership: str | None
    """The user's membership in the room's current state."""
    forgotten: bool
    kept_since: int | None
    """Messages with a lower ``origin_server_ts`` have expired. None: no message has expired."""

    def reach(self, stream_ordering: int, topological_ordering: int) -> Reach:
        if not self.known:
            return Reach.UNKNOWN
        if not self.readable:
            return Reach.FORGOTTEN if self.forgotten else Reach.NOT_A_MEMBER
        if self.peeking:
            return Reach.PEEKING
        if self.cut is None:
            return Reach.MEMBER
        above = stream_ordering < 0 and (self.cut_depth is None or topological_ordering > self.cut_depth)
        return Reach.AFTER_LEAVE if stream_ordering > self.cut or above else Reach.BEFORE_LEAVE


def read_access(
    user_id: str, room_ids: Collection[str], using: str = "default", now_ms: int | None = None
) -> dict[str, Access]:
    """Returns the user's access to these rooms, by one query.

    Rooms that are not stored are left out.

    ``now_ms`` is the time for which retention is evaluated, by default the present. Raises ``InvalidQuery`` for more
    than ``ROOMS_LIMIT`` rooms.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    rooms = checked_ids(room_ids, ROOMS_LIMIT)
    with connections[using].cursor() as cursor:
        cursor.execute(_ACCESS, {"user": user_id if can_be_stored(user_id) else _NO_USER, "rooms": sorted(rooms)})
        rows = cursor.fetchall()
    return {row[0]: access_of(row, now_ms) for row in rows}


def access_to_events(user_id: str, event_ids: Collection[str], using: str = "default") -> dict[str, Access]:
    """Returns the user's present access to the rooms of these events, by one query. The IDs must be storable."""
    values = {"user": user_id if can_be_stored(user_id) else _NO_USER, "events": list(event_ids)}
    rows = rows_of_repeated(connections[using], _ACCESS_TO_EVENTS, values)
    now_ms = time.time_ns() // 1_000_000
    return {row[0]: access_of(row, now_ms) for row in rows}


def access_of(row: Sequence[Any], now_ms: int) -> Access:
    """Returns the access in a row of the SQL function ``events_access``."""
    room_id, known, readable, peeking, recorded, cut, cut_depth, membership, forgotten, policy = row
    kept = max_lifetime_ms(policy, stream_settings())
    since = None if kept is None or kept >= now_ms else now_ms - kept
    readable = known and readable
    return Access(room_id, known, readable, peeking, recorded, cut, cut_depth, membership, forgotten, since)


def require_readable(access: Access | None, user_id: str, room_id: str) -> Access:
    """Returns ``access``. Raises ``UnknownRoom`` if it is None, and ``NotReadable`` if the user may not read the room."""
    if access is None:
        raise UnknownRoom(f"There is no room {room_id!r:.300}.")
    if not access.known:
        raise NotReadable(f"Who sees what in {room_id} is not known: events below others are missing.")
    if not access.readable:
        raise NotReadable(f"{user_id} may not read {room_id}: not a member, and the room is not world readable.")
    return access


def access_parameters(user_id: str, accesses: Iterable[Access]) -> dict[str, Any]:
    """Returns the parameters of ``predicate_sql.ACCESS_ROWS`` and ``predicate_sql.sees()``, of readable rooms only."""
    rows = [access for access in accesses if access.readable]
    return {
        "user_id": user_id,
        "access_rooms": [row.room_id for row in rows],
        "access_peeking": [row.peeking for row in rows],
        "access_recorded": [row.recorded for row in rows],
        "access_cuts": [row.cut for row in rows],
        "access_cut_depths": [row.cut_depth for row in rows],
        "access_kept_since": [row.kept_since for row in rows],
    }


def max_lifetime_ms(policy: bytes | None, configured: StreamSettings) -> int | None:
    """Returns for how long a room keeps messages, by its ``m.room.retention`` (``policy``) and the settings.

    None: for ever.
    """
    lifetime = _wanted_lifetime(policy)
    if lifetime is None and configured.retention_default_seconds > 0:
        lifetime = round(configured.retention_default_seconds * 1000)
    if lifetime is None:
        return None
    lifetime = max(lifetime, round(configured.retention_shortest_seconds * 1000))
    longest = round(configured.retention_longest_seconds * 1000)
    return min(lifetime, longest) if longest > 0 else lifetime


def _wanted_lifetime(policy: bytes | None) -> int | None:
    event = decode_stored(bytes(policy)) if policy is not None else None
    wanted = event["content"].get("max_lifetime") if event is not None else None
    return wanted if type(wanted) is int and wanted >= 0 else None


# --- what users decide ------------------------------------------------------------------------------------------------


def forget_room(user_id: str, room_id: str, using: str | None = None) -> None:
    """Hides the room from a user who has left, as if the user had never been a member.

    A new membership shows it again.

    Raises ``CannotForget`` unless the user has left or is banned.
    """
    alias = using or stream_settings().database
    if not (can_be_stored(user_id) and can_be_stored(room_id)):
        raise CannotForget(f"{user_id!r:.300} cannot forget {room_id!r:.300}: there is no such user in such a room.")
    with seeing_commits(alias):
        members = CurrentState.objects.using(alias).filter(room_id=room_id, type="m.room.member", state_key=user_id)
        # A locks the membership row and reads the leave. B, which stores a new join, waits for A before it changes this row.
        # A's row names the leave, so it no longer applies once B has committed: the room is not hidden from a joined user.
        found = members.select_for_update().values_list("event_id", "membership").first()
        if found is None or found[1] not in ("leave", "ban"):
            state = "has no membership there" if found is None else f"is at {found[1]!r} there"
            raise CannotForget(f"{user_id} cannot forget {room_id}: the user {state}; leave the room first.")
        ForgottenRoom.objects.using(alias).bulk_create(
            [ForgottenRoom(user_id=user_id, room_id=room_id, event_id=found[0])],
            update_conflicts=True,
            unique_fields=["user_id", "room_id"],
            update_fields=["event_id"],
        )


def unforget_room(user_id: str, room_id: str, using: str | None = None) -> bool:
    """Returns false if the room was not forgotten."""
    alias = using or stream_settings().database
    if not (can_be_stored(user_id) and can_be_stored(room_id)):
        return False
    return ForgottenRoom.objects.using(alias).filter(user_id=user_id, room_id=room_id).delete()[0] > 0


def erase_user(user_id: str, using: str | None = None) -> bool:
    """Erases a user: other users who were not joined at an event of this user see the event redacted.

    Returns false if the user was erased already.
    """
    alias = using or stream_settings().database
    return ErasedUser.objects.using(alias).get_or_create(user_id=storable(user_id, "erased user"))[1]


def unerase_user(user_id: str, using: str | None = None) -> bool:
    """Returns false if the user was not erased."""
    alias = using or stream_settings().database
    return can_be_stored(user_id) and ErasedUser.objects.using(alias).filter(user_id=user_id).delete()[0] > 0


def ignored_users_in(content: object) -> list[str]:
    """Returns the users in the content of an ``m.ignored_user_list``; none if it is unreadable."""
    users = content.get("ignored_users") if isinstance(content, Mapping) else None
    return sorted(user for user in users if isinstance(user, str)) if isinstance(users, Mapping) else []


def set_ignored_users(user_id: str, ignored: Iterable[str]) -> int:
    """Replaces the list of users whom a user ignores.

    The user's own ID is left out of the list.

    If the list changes, the user's next sync answer is a full one, because an answer has neither messages, invites,
    receipts nor typing of ignored users. Appends a fact to the stream ``account_data`` in the same transaction, and
    returns its position. Raises ``EventRefused`` for an invalid identifier, and ``ValueError`` for more than
    ``IGNORED_USERS_LIMIT`` users.
    """
    storable(user_id, "user")
    wanted = {storable(user, "ignored user") for user in ignored} - {user_id}
    if len(wanted) > IGNORED_USERS_LIMIT:
        raise ValueError(f"{user_id} ignores {len(wanted)} users; the limit is {IGNORED_USERS_LIMIT}.")
    alias = stream_settings().database
    with seeing_commits(alias):
        # Without this lock: A replaces the list by {x}, B at the same time by {y}. Neither sees the row that the other has
        # not committed, so neither deletes it, and the user ignores both x and y.
        with connections[alias].cursor() as cursor:
            for lock in lock_exclusively("ignored users", _ROWS_OF_LOCKS, [user_id]):
                cursor.execute(lock.text, lock.values)
        stored = IgnoredUser.objects.using(alias).filter(user_id=user_id)
        is_changed = wanted != set(stored.values_list("ignored_user_id", flat=True))
        stored.exclude(ignored_user_id__in=wanted).delete()
        IgnoredUser.objects.using(alias).bulk_create(
            [IgnoredUser(user_id=user_id, ignored_user_id=other) for other in sorted(wanted)], ignore_conflicts=True
        )
        if is_changed:
            invalidate(RESYNC_USER, [user_id])
        change = AccountDataChange(user_id=user_id, room_id=None, data_type=IGNORED_USER_LIST)
        return registry.get("account_data").append(change)[0]
