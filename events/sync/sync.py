"""Returns everything that is new for a user since a token, over all streams (``sync``). Can wait until something is new.

    answer = sync("@alice:x")                                              # everything, and a token
    answer = sync("@alice:x", answer.next_batch, timeout_seconds=30.0)     # what is new; waits until there is something

One token stands for the positions in all streams (``events.tokens.sync_token``). Rooms come from ``events.sync.rooms``,
and each other stream from its provider (``events.sync.providers``). Rooms and streams are read in one snapshot of the
database. The notifier (``events.notifier.notifier``) knows from memory which streams may concern the user: the others
are not queried, and do not wake a waiting caller.

An answer covers exactly the facts between its two tokens, so no fact is missed or repeated.

The first answer is *full*. So is the answer to a token from before a call of ``resync_user`` for the user. An
unreadable token is refused with ``TokenError``, and a token from before a restore of the database with
``EpochChanged``. The client then calls ``sync`` without a token.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from events.arguments import can_be_stored, checked_limit
from events.declarations import EVENTS, RESYNC_USER
from events.errors import InvalidQuery
from events.notifier import notifier
from events.notifier.routing import Target, routed_streams
from events.notifier.stream_cache import At
from events.sync.answers import RoomsSince
from events.sync.providers import StreamChanges, StreamQuery, answer_of, providers
from events.sync.rooms import MOST_EVENTS, MOST_ROOMS, initial_sync, rooms_since
from events.sync.shared_rooms import Known, SharedRooms, shared_rooms_at, shared_rooms_between, with_late_members
from events.tokens.positions import read_token, token_text
from events.tokens.sync_token import SyncToken
from streams import registry
from streams.caches import invalidate
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db.consistent_read import read_only_snapshot
from streams.epochs import current_epoch
from streams.errors import WaitTimedOut
from streams.reading.rows import stored_positions
from streams.writing.given_out import last_given_out
from streams.writing.name import writer_name

__all__ = ["LONGEST_SECONDS", "SyncAnswer", "await_sync", "resync_user", "sync"]

LONGEST_SECONDS = 600.0
"""The longest time that a caller may ask to wait."""
FOLLOW_SECONDS = 2.0
"""The longest wait for a position that another process gave out and this one does not know yet."""
EVENTS_PER_ROOM = 20
_CACHES = "caches"
_MARKED = f"""
SELECT EXISTS (SELECT FROM streams_cacheinvalidation WHERE stream_id > %(base)s AND cache_name = '{RESYNC_USER}'
               AND %(user)s = ANY(keys) AND stream_id <= %(upto)s),
       coalesce((SELECT position FROM streams_lowwatermark WHERE stream = '{_CACHES}'), 0)
"""


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The news for a user.

    If ``full`` is true, the client discards all earlier answers, because this one is complete.

    ``streams`` has only the streams with news: name -> changes to the mapping that the client holds for that stream.
    """

    next_batch: str
    full: bool = False
    rooms: RoomsSince = field(default_factory=RoomsSince)
    streams: Mapping[str, StreamChanges] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.full or self.rooms or self.streams)


def sync(
    user_id: str,
    since: str | None = None,
    timeout_seconds: float = 0.0,
    events: int = EVENTS_PER_ROOM,
    using: str | None = None,
) -> SyncAnswer:
    """Returns the changes for the user since ``since``, the ``next_batch`` of an earlier answer.

    None means everything.

    Waits up to ``timeout_seconds`` (0 to ``LONGEST_SECONDS``) until something is new. If the token is ahead of this
    process's positions, the call may take up to ``FOLLOW_SECONDS`` longer. ``events`` is the largest number of events
    in a room's timeline, at most ``MOST_EVENTS``. Do not call this inside a transaction. Raises ``InvalidQuery``,
    ``TokenError``, ``EpochChanged`` and ``TooManyWaiters``.
    """
    call = _SyncCall(user_id, since, timeout_seconds, events, using)
    while (answer := call.answer()) is None:
        # The query covered positions up to 5, and a row at 6 arrives before this line. ``wait`` compares with ``answered``
        # (5), not with the time of this call, so it returns at once.
        notifier.wait(user_id, call.answered, call.seconds_left(), using)
    return answer


async def await_sync(
    user_id: str,
    since: str | None = None,
    timeout_seconds: float = 0.0,
    events: int = EVENTS_PER_ROOM,
    using: str | None = None,
    *,
    query: Callable[[Callable[[], SyncAnswer | None]], Awaitable[SyncAnswer | None]] | None = None,
) -> SyncAnswer:
    """Does the same as ``sync`` for async code.

    A call that waits for news occupies no thread.

    ``query`` is an async function that runs the database queries of the call: it receives a blocking function, runs it
    in a thread, and returns its result, as ``sync_to_async`` does. A caller that serves many clients can pass one that
    limits how many of these functions run at a time.
    """
    call = _SyncCall(user_id, since, timeout_seconds, events, using)
    while (answer := await (sync_to_async(call.answer)() if query is None else query(call.answer))) is None:
        await notifier.await_news(user_id, call.answered, call.seconds_left(), using)
    return answer


def resync_user(user_id: str, using: str | None = None) -> int:
    """Makes each existing token of the user cause a full answer next time.

    Returns the position of the mark.

    The mark is a fact of the stream ``caches``, appended in the caller's transaction if there is one. Raises
    ``InvalidQuery`` for an invalid user ID.
    """
    if not user_id or not can_be_stored(user_id):
        raise InvalidQuery(f"{user_id!r:.60} is no user ID, so no next answer can be made a full one.")
    return invalidate(RESYNC_USER, [user_id], using=using)[0]


class _SyncCall:
    # One call of ``sync``, which may have to query several times.
    def __init__(self, user_id: str, since: str | None, timeout_seconds: float, events: int, using: str | None) -> None:
        if not isinstance(user_id, str) or not user_id or not can_be_stored(user_id):
            raise InvalidQuery(f"{user_id!r:.60} is no user ID.")
        if not isinstance(timeout_seconds, int | float) or not 0 <= timeout_seconds <= LONGEST_SECONDS:
            raise InvalidQuery(f"A sync waits 0 to {LONGEST_SECONDS:g} s, not {timeout_seconds!r:.60}.")
        self._user_id, self._text = user_id, since
        self._events = checked_limit(events, MOST_EVENTS)
        self._using = using or stream_settings().database
        self._end = time.monotonic() + timeout_seconds
        self._since: SyncToken | None = None
        self._epoch = ""
        self.answered: Mapping[str, At] = {}

    def seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def answer(self) -> SyncAnswer | None:
        # None while nothing is new and there is time to wait, after that an empty answer.
        since = self._read_since()
        # Positions first, the snapshot later (in ``_full`` and ``_changes``). A position is known after the commits that it
        # covers. If it were read inside the snapshot, it could cover a commit that the snapshot lacks, and the client would
        # never get that fact.
        at = self._positions() if self.answered else self._positions_with_committed_facts()
        now = _token(at, self._epoch)
        if since is None:
            return self._full(now)
        if since.known_to(now).ahead_of(now):
            at, now = self._wait_for_token(since.known_to(now), now)
        known = since.known_to(now).bounded_by(now)
        at_known = {name: At(part, known.generations.get(name)) for name, part in known.parts.items()}
        news = notifier.news(self._user_id, at_known, list(now.parts), self._using)
        if _CACHES in news and self._is_marked(known, now):
            return self._full(now)
        found = self._changes(known, now, news) if news else None
        if found is not None and (found.rooms or found.streams):
            return found
        # Nothing up to ``now`` is for this user. The next round begins there, and does not read the same facts again.
        self.answered, self._since = at, since.followed_by(now)
        return SyncAnswer(token_text(self._since, self._using)) if self.seconds_left() <= 0 else None

    # --- positions --------------------------------------------------------------------------------------------------

    def _read_since(self) -> SyncToken | None:
        if self._epoch:
            return self._since
        if self._text is not None:
            self._since = read_token(self._text, self._using)
            self._epoch = self._since.epoch
        else:
            with connections[self._using].cursor() as cursor:
                self._epoch = current_epoch(cursor)
        return self._since

    def _positions(self) -> Mapping[str, At]:
        return notifier.positions(self._using) or _stored_positions(self._using)

    def _positions_with_committed_facts(self) -> Mapping[str, At]:
        # What this process has committed for a user is in the user's next answer.
        at, end, connection = self._positions(), time.monotonic() + FOLLOW_SECONDS, connections[self._using]
        behind = [
            stream
            for stream in map(registry.get, at)
            if not at[stream.name].token.covers(writer_name(), last_given_out(stream, connection))
        ]
        with suppress(WaitTimedOut):
            for stream in behind:
                committed = stream.current(self._using).token()
                stream.wait_for(committed, max(0.0, end - time.monotonic()), self._using)
        return self._positions() if behind else at

    def _wait_for_token(self, since: SyncToken, now: SyncToken) -> tuple[Mapping[str, At], SyncToken]:
        # Another process has given out a token that is ahead of this one, which will soon be there. If a client made it
        # up, the call waits in vain, for ``FOLLOW_SECONDS``.
        end = time.monotonic() + FOLLOW_SECONDS
        with suppress(WaitTimedOut):
            for stream, part in since.ahead_of(now).items():
                registry.get(stream).wait_for(part, max(0.0, end - time.monotonic()), self._using)
        at = self._positions()
        return at, _token(at, self._epoch)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _full(self, now: SyncToken) -> SyncAnswer:
        with read_only_snapshot(self._using) as cursor:
            shared = shared_rooms_at(cursor, self._user_id, now.parts[EVENTS.name])
            streams = self._streams(cursor, None, now, [n for n in providers() if n in now.parts], shared)
            rooms = self._all_rooms(now)
            token = self._since.followed_by(now) if self._since is not None else now
            held = {name: found for name, found in streams.items() if found.changed}
            return SyncAnswer(token_text(token, self._using), True, rooms, held)

    def _all_rooms(self, now: SyncToken) -> RoomsSince:
        page = initial_sync(self._user_id, MOST_ROOMS, self._events, None, self._using, now)
        joined, left, invited, knocked = list(page.rooms), page.left, page.invited, page.knocked
        while page.next_page is not None:
            page = initial_sync(self._user_id, MOST_ROOMS, self._events, page.next_page, self._using)
            joined += page.rooms
        return RoomsSince(tuple(joined), left, invited, knocked)

    def _changes(self, since: SyncToken, now: SyncToken, news: Sequence[str]) -> SyncAnswer:
        before, upto = since.of(EVENTS.name), now.parts[EVENTS.name]
        seen = notifier.look(self._user_id, before or VectorToken(0), self._using)
        movers = None if before is None else notifier.movers_since(before, self._using)
        known = None if seen.changed is None else Known(seen.rooms, seen.changed)
        # ``seen`` and ``movers`` may be newer than ``now``. They only say where to look: every query below ends at ``now``.
        with read_only_snapshot(self._using) as cursor:
            rooms = RoomsSince()
            if before is None:
                rooms, shared = self._all_rooms(now), shared_rooms_at(cursor, self._user_id, upto)
            elif EVENTS.name in news:
                rooms = rooms_since(
                    *(self._user_id, before, upto, self._events, seen.changed, self._using),
                    memberships_changed=seen.memberships_changed,
                )
                if movers or movers is None or known is None:
                    shared = shared_rooms_between(cursor, self._user_id, before, upto, known)
                else:  # no user's membership changed in any room
                    shared = SharedRooms(seen.rooms)
            elif seen.memberships_changed:  # after ``now`` was read, so ``seen.rooms`` may be too new
                shared = shared_rooms_at(cursor, self._user_id, upto)
            else:
                shared = SharedRooms(seen.rooms)
            # ``news`` knows the user's rooms as of now. A room that the user left after ``now`` is not among them.
            in_news = news if shared.rooms <= seen.rooms else None
            streams = self._streams(cursor, since, now, _streams_to_query(news, shared), shared, in_news)
            token = token_text(since.followed_by(now), self._using)
        return SyncAnswer(token, False, rooms, streams)

    def _streams(
        self,
        cursor: Any,
        since: SyncToken | None,
        now: SyncToken,
        names: Iterable[str],
        shared: SharedRooms,
        news: Collection[str] | None = None,
    ) -> dict[str, StreamChanges]:
        known, found = providers(), {}
        names = list(names)
        if any(known[name].kind is Target.CONTACT for name in names):
            shared = with_late_members(cursor, shared, now.parts[EVENTS.name])
        for name in names:
            before = None if since is None else since.of(name)
            has_news = news is None or name in news
            query = StreamQuery(cursor, self._user_id, shared, now.parts[name], before, has_news)
            found[name] = answer_of(known[name], query)
        return {name: changes for name, changes in found.items() if changes}

    def _is_marked(self, since: SyncToken, now: SyncToken) -> bool:
        # ``resync_user`` was called after ``since``, or the facts that would show it were trimmed
        part = since.of(_CACHES)
        if part is None:
            return False
        with connections[self._using].cursor() as cursor:
            upto = now.parts[_CACHES].highest
            cursor.execute(_MARKED, {"base": part.base, "upto": upto, "user": self._user_id})
            marked, trimmed = cursor.fetchone()
            return bool(marked or trimmed > part.base)


def _streams_to_query(news: Iterable[str], shared: SharedRooms) -> list[str]:
    # those with news, and those that depend on gained or lost rooms or contacts
    has_moved = {
        Target.ROOM: bool(shared.rooms_gained or shared.rooms_lost),
        Target.CONTACT: bool(shared.users_gained or shared.users_lost),
        Target.USER: False,
    }
    names = set(news)
    return [name for name, provider in providers().items() if name in names or has_moved[provider.kind]]


def _token(at: Mapping[str, At], epoch: str) -> SyncToken:
    generations = {name: found.generation for name, found in at.items() if found.generation is not None}
    return SyncToken({name: found.token for name, found in at.items()}, epoch, {}, generations)


def _stored_positions(using: str) -> Mapping[str, At]:
    # while the notifier has none
    found: dict[str, At] = {}
    for name in routed_streams():
        if (stream := registry.find(name)) is not None:
            now = stream.current(using)
            if stream.declaration.in_memory:
                with connections[using].cursor() as cursor:
                    stored = stored_positions(cursor, [name]).get(name, {})
                generation = max((at.generation for at in stored.values()), default=0)
                found[name] = At(VectorToken(now.linear), generation)
            else:
                found[name] = At(now.token(), None)
    return found
