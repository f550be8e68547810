"""``sync``: everything that is new for a user since a token, over all streams, waiting for it if need be.

    answer = sync("@alice:x")                                              # everything, and a token
    answer = sync("@alice:x", answer.next_batch, timeout_seconds=30.0)     # what is new; waits until there is something

One token stands for the positions in all streams (``events.tokens.sync_token``). Rooms come from ``events.sync.rooms``, each
other stream from its provider (``events.sync.providers``), all read in one view of the database. What concerns the user is
found in memory (``events.notifier.notifier``): streams without anything are not asked, and a caller who waits is woken by
nothing else.

Nothing is missed: positions are taken from the memory, which is complete up to them, before the view is read; whoever waits goes
on from the very positions that were answered. Nothing is repeated: what an answer tells lies between the two tokens.

The answer is *full*, as the first one, to a token from below a mark that asks for it (``resync_user``). A token that cannot be
read, or of a life of the database before a restore, is refused (``TokenError``, ``EpochChanged``): sync without one then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from events.arguments import can_be_stored, checked_limit
from events.declarations import EVENTS
from events.errors import BadQuestion
from events.notifier import notifier
from events.notifier.routing import RESYNC_USER, Kind, followed
from events.notifier.stream_cache import At
from events.sync.answers import RoomsSince
from events.sync.providers import Question, StreamChanges, answer_of, providers
from events.sync.rooms import MOST_EVENTS, MOST_ROOMS, initial_sync, rooms_since
from events.sync.shared_rooms import Circle, Known, circle_at, circle_between, with_late
from events.tokens.positions import read_token, token_text
from events.tokens.sync_token import SyncToken
from streams import registry
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db.consistent_read import one_view
from streams.epochs import current_epoch
from streams.errors import WaitTimedOut
from streams.reading.rows import stored_positions

__all__ = ["LONGEST_SECONDS", "SyncAnswer", "await_sync", "resync_user", "sync"]

LONGEST_SECONDS = 600.0
"""Longest time that a caller may wait."""
FOLLOW_SECONDS = 2.0
"""So long is waited for a position that another process has shown and this one has not heard of."""
EVENTS_PER_ROOM = 20
_CACHES = "caches"
_MARKED = f"""
SELECT EXISTS (SELECT FROM streams_cacheinvalidation WHERE stream_id > %(base)s AND cache_name = '{RESYNC_USER}'
               AND %(user)s = ANY(keys) AND stream_id <= %(upto)s),
       coalesce((SELECT position FROM streams_lowwatermark WHERE stream = '{_CACHES}'), 0)
"""


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """What is new. ``full``: everything that was told before is to be forgotten, this is all there is.

    ``streams`` has the streams that brought something, by name, as what to do with what one holds of them.
    """

    next_batch: str
    full: bool = False
    rooms: RoomsSince = field(default_factory=RoomsSince)
    streams: Mapping[str, StreamChanges] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything new."""
        return bool(self.full or self.rooms or self.streams)


def sync(
    user_id: str,
    since: str | None = None,
    timeout_seconds: float = 0.0,
    events: int = EVENTS_PER_ROOM,
    using: str | None = None,
) -> SyncAnswer:
    """What is new for the user since ``since``, the ``next_batch`` of an earlier answer; without one: everything.

    Waits up to ``timeout_seconds`` until there is something, and never longer. ``events`` is the most of a room's timeline.
    Not within a transaction of the caller's. Raises ``BadQuestion``, ``TokenError``, ``EpochChanged`` and ``TooManyWaiters``.
    """
    talk = _Talk(user_id, since, timeout_seconds, events, using)
    while (answer := talk.answer()) is None:
        notifier.wait(user_id, talk.answered, talk.seconds_left(), using)
    return answer


async def await_sync(
    user_id: str,
    since: str | None = None,
    timeout_seconds: float = 0.0,
    events: int = EVENTS_PER_ROOM,
    using: str | None = None,
) -> SyncAnswer:
    """``sync`` for async code: no thread is kept while it waits."""
    talk = _Talk(user_id, since, timeout_seconds, events, using)
    while (answer := await sync_to_async(talk.answer)()) is None:
        await notifier.await_news(user_id, talk.answered, talk.seconds_left(), using)
    return answer


def resync_user(user_id: str, using: str | None = None) -> int:
    """Make the next answer to each token of the user's a full one; in the caller's transaction, or in one of its own.

    A fact of the stream ``caches``; returns its position.
    """
    from streams.models import CacheInvalidation  # noqa: PLC0415 - needs Django's apps to be loaded

    if not user_id or not can_be_stored(user_id):
        raise BadQuestion(f"{user_id!r:.60} is no user ID, so nobody's next answer can be a full one.")
    return registry.get(_CACHES).append(CacheInvalidation(cache_name=RESYNC_USER, keys=[user_id]), using=using)[0]


class _Talk:
    """One call of ``sync``, which may have to look several times."""

    def __init__(self, user_id: str, since: str | None, timeout_seconds: float, events: int, using: str | None) -> None:
        if not isinstance(user_id, str) or not user_id or not can_be_stored(user_id):
            raise BadQuestion(f"{user_id!r:.60} is no user ID.")
        if not isinstance(timeout_seconds, int | float) or not 0 <= timeout_seconds <= LONGEST_SECONDS:
            raise BadQuestion(f"A sync waits 0 to {LONGEST_SECONDS:g} s, not {timeout_seconds!r:.60}.")
        self._user_id, self._text = user_id, since
        self._events = checked_limit(events, MOST_EVENTS)
        self._using = using or stream_settings().database
        self._end = time.monotonic() + timeout_seconds
        self._since: SyncToken | None = None
        self._epoch = ""
        self.answered: Mapping[str, At] = {}

    def seconds_left(self) -> float:
        """How long it may go on waiting."""
        return max(0.0, self._end - time.monotonic())

    def answer(self) -> SyncAnswer | None:
        """What is new, or at the end of the time that nothing is; None: wait for more."""
        since = self._read_since()
        at = self._positions()
        now = _token(at, self._epoch)
        if since is None:
            return self._full(now)
        if since.known_to(now).ahead_of(now):
            at, now = self._followed(since.known_to(now), now)
        known = since.known_to(now).bounded_by(now)
        news = self._news(known, now)
        if _CACHES in news and self._is_marked(known, now):
            return self._full(now)
        found = self._changes(known, now, news) if news else None
        if found is not None and (found.rooms or found.streams):
            return found
        self.answered, self._since = at, since.followed_by(now)  # what was answered with nothing is not looked at again
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

    def _followed(self, since: SyncToken, now: SyncToken) -> tuple[Mapping[str, At], SyncToken]:
        """A position ahead of ours was shown by another process, and this one will hear of it; or it was made up."""
        end = time.monotonic() + FOLLOW_SECONDS
        with suppress(WaitTimedOut):
            for stream, part in since.ahead_of(now).items():
                registry.get(stream).wait_for(part, max(0.0, end - time.monotonic()), self._using)
        at = self._positions()
        return at, _token(at, self._epoch)

    def _news(self, since: SyncToken, now: SyncToken) -> list[str]:
        """Streams that may have something for the user."""
        known = {name: At(part, since.generations.get(name)) for name, part in since.parts.items()}
        return notifier.news(self._user_id, known, list(now.parts), self._using)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _full(self, now: SyncToken) -> SyncAnswer:
        with one_view(self._using) as cursor:
            circle = circle_at(cursor, self._user_id, now.parts[EVENTS.name])
            streams = self._streams(cursor, None, now, [n for n in providers() if n in now.parts], circle)
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
        movers = None if before is None or seen.memberships_changed else notifier.movers_since(before, self._using)
        known = None if movers is None else Known(seen.rooms, movers)
        with one_view(self._using) as cursor:
            rooms = RoomsSince()
            if before is None:
                rooms, circle = self._all_rooms(now), circle_at(cursor, self._user_id, upto)
            elif EVENTS.name in news:
                changed = None if seen.memberships_changed else seen.changed
                rooms = rooms_since(self._user_id, before, upto, self._events, changed, self._using)
                circle = circle_between(cursor, self._user_id, before, upto, known)
            elif seen.memberships_changed:  # just now
                circle = circle_at(cursor, self._user_id, upto)
            else:
                circle = Circle(seen.rooms)
            streams = self._streams(cursor, since, now, _asked(news, circle), circle)
            token = token_text(since.followed_by(now), self._using)
        return SyncAnswer(token, False, rooms, streams)

    def _streams(
        self, cursor: Any, since: SyncToken | None, now: SyncToken, asked: Iterable[str], circle: Circle
    ) -> dict[str, StreamChanges]:
        known, found = providers(), {}
        asked = list(asked)
        if any(known[name].kind is Kind.CONTACT for name in asked):
            circle = with_late(cursor, circle, now.parts[EVENTS.name])
        for name in asked:
            before = None if since is None else since.of(name)
            found[name] = answer_of(known[name], Question(cursor, self._user_id, circle, now.parts[name], before))
        return {name: changes for name, changes in found.items() if changes}

    def _is_marked(self, since: SyncToken, now: SyncToken) -> bool:
        """Whether somebody asked for a full answer since, or may have: the marks are trimmed with their stream."""
        part = since.of(_CACHES)
        if part is None:
            return False
        with connections[self._using].cursor() as cursor:
            upto = now.parts[_CACHES].highest
            cursor.execute(_MARKED, {"base": part.base, "upto": upto, "user": self._user_id})
            marked, trimmed = cursor.fetchone()
            return bool(marked or trimmed > part.base)


def _asked(news: Iterable[str], circle: Circle) -> list[str]:
    """The streams to ask: those with news, and those where it matters that somebody came or went."""
    come_and_gone = {
        Kind.ROOM: bool(circle.rooms_come or circle.rooms_gone),
        Kind.CONTACT: bool(circle.users_come or circle.users_gone),
        Kind.USER: False,
    }
    names = set(news)
    return [name for name, provider in providers().items() if name in names or come_and_gone[provider.kind]]


def _token(at: Mapping[str, At], epoch: str) -> SyncToken:
    generations = {name: found.generation for name, found in at.items() if found.generation is not None}
    return SyncToken({name: found.token for name, found in at.items()}, epoch, {}, generations)


def _stored_positions(using: str) -> Mapping[str, At]:
    """While nothing is heard: where the streams are by their tables, and by what this process wrote itself."""
    found: dict[str, At] = {}
    for name in followed():
        if (stream := registry.find(name)) is not None:
            now = stream.current(using)
            if stream.declaration.in_memory:
                found[name] = At(VectorToken(now.linear), _generation(name, using))
            else:
                found[name] = At(now.token(), None)
    return found


def _generation(name: str, using: str) -> int:
    with connections[using].cursor() as cursor:
        stored = stored_positions(cursor, [name]).get(name, {})
    return max((at.generation for at in stored.values()), default=0)
