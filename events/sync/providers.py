"""Defines the *providers*: what each stream contributes to a sync answer, and how a new stream joins.

A client holds a mapping from keys to values for each stream. A key is a tuple of texts. It begins with the room for
facts of a room, and with the user for facts that contacts see. An answer (``StreamChanges``) says which keys to set and
which to remove. After these changes the mapping equals a fresh full answer. ``tests/integration/events/test_sync.py`` tests
this for every stream; do the same for a stream of your own.

    the client holds    {(!a, @ada): 5, (!b, @bob): 7}
    the answer says     gone [(!b,)], changed {(!a, @ada): 6}
    the client holds    {(!a, @ada): 6}

A stream joins with ``join_sync(LatestRowPerKey(…))``, or with a provider of its own. Such a provider needs two things.
A function maps a ``StreamQuery`` to ``StreamChanges``. A rule says which users a row concerns, so that only callers
that wait for these users are woken. Older tokens have no position in the new stream, so the next answer to such a token
contains the whole stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from events.notifier.routing import Concerns, Target, contact_in, room_in, route_stream, user_in
from events.sync.shared_rooms import SharedRooms
from streams import registry
from streams.core.json_codec import decode_stored_json
from streams.core.named_rows import places_of
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.errors import ResyncNeeded

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """The query for a provider.

    If ``since`` is None, the query asks for everything that is valid at ``now``.

    If ``has_news`` is false, no fact after ``since`` concerns the user: only gained and lost rooms and contacts count.
    """

    cursor: Any
    user_id: str
    shared: SharedRooms
    now: VectorToken
    since: VectorToken | None = None
    has_news: bool = True


@dataclass(frozen=True, slots=True)
class StreamChanges:
    """The changes to the mapping that a client holds of a stream.

    With ``whole`` the client starts with an empty mapping. Otherwise the client removes every key that begins with one
    of ``gone``. Then the client sets the keys and values in ``changed``.
    """

    changed: Mapping[Key, Any] = field(default_factory=dict)
    gone: frozenset[Key] = frozenset()
    whole: bool = False

    def __bool__(self) -> bool:
        return bool(self.changed or self.gone or self.whole)

    def apply_to(self, held: Mapping[Key, Any]) -> dict[Key, Any]:
        if self.whole:
            return dict(self.changed)
        ends = {len(key) for key in self.gone}
        kept = {key: value for key, value in held.items() if not any(key[:end] in self.gone for end in ends)}
        return {**kept, **self.changed}


class Provider(Protocol):
    """The source of one stream's part of sync answers.

    ``kind`` says on what the part depends: on joined rooms, on contacts, or on the user alone.
    """

    @property
    def stream(self) -> str: ...
    @property
    def kind(self) -> Target: ...
    def changes(self, question: StreamQuery) -> StreamChanges: ...


@dataclass(frozen=True, slots=True)
class LatestRowPerKey:
    """The provider for streams in which the newest row of a key is its present value.

    ``entity`` is the column with the room or user that a row concerns. ``key`` has the columns of the key, and
    ``value`` the columns of the value. A name that begins with ``json:`` means a column of JSON text; its value is None
    if the text is not JSON. Without ``value`` the value is the row's position: such streams only announce a change, and
    clients get the details elsewhere.

    If ``ended`` returns true for a value, its key is removed. If ``shown`` returns false for a user, key and value, the
    row is skipped. ``where`` is a further SQL condition on the rows (table ``t``, parameter ``user``).

    If part of the key is inside a value, ``inner_key`` returns it. ``apart`` is then an SQL expression that differs
    between rows with different inner keys.
    """

    stream: str
    kind: Target
    entity: str
    key: tuple[str, ...]
    value: tuple[str, ...] = ()
    ended: Callable[[Mapping[str, Any]], bool] | None = None
    shown: Callable[[str, Key, Mapping[str, Any]], bool] | None = None
    where: str = ""
    inner_key: Callable[[Mapping[str, Any]], Key] | None = None
    apart: str = ""

    def changes(self, question: StreamQuery) -> StreamChanges:
        question.cursor.execute(self._sql(question), self._parameters(question))
        columns = [column.removeprefix("json:") for column in self.value]
        changed: dict[Key, Any] = {}
        removed: set[Key] = set()
        if question.since is not None and self.kind is not Target.USER:
            shared = question.shared
            lost = shared.rooms_lost if self.kind is Target.ROOM else shared.users_lost
            removed.update((entity,) for entity in lost)
        newest: dict[Key, int] = {}
        for row in question.cursor.fetchall():
            key = tuple(part or "" for part in row[2 : 2 + len(self.key)])
            value = dict(zip(columns, self._values(row[2 + len(self.key) :]), strict=True))
            if self.inner_key is not None:
                key += self.inner_key(value)
                if newest.setdefault(key, row[0]) > row[0]:  # ``apart`` may tell more apart than the keys
                    continue
                newest[key] = row[0]
            if self.shown is not None and not self.shown(question.user_id, key, value):
                continue
            if self.ended is not None and self.ended(value):
                if question.since is not None:  # in a full answer the client holds nothing that could be removed
                    removed.add(key)
            else:
                changed[key] = value or {"position": row[0]}
        return StreamChanges(changed, frozenset(removed), whole=question.since is None)

    def _values(self, row: Sequence[Any]) -> Iterable[Any]:
        for column, value in zip(self.value, row, strict=True):
            yield decode_stored_json(value) if column.startswith("json:") and value is not None else value

    def _sql(self, question: StreamQuery) -> str:
        table = registry.get(self.stream).declaration.tables[0]
        position, writer = f"t.{table.id_column}", f"t.{table.writer_column}"
        values = [f"t.{column.removeprefix('json:')}" for column in self.value]
        keys = [f"t.{column}" for column in self.key]
        known = f"{position} <= coalesce((%(now_entries)s::jsonb ->> {writer})::bigint, %(now_base)s)"
        new = (
            f"{position} > %(since_base)s AND "
            f"{position} > coalesce((%(since_entries)s::jsonb ->> {writer})::bigint, %(since_base)s)"
        )
        if question.since is not None and not question.has_news:
            of_user, news = f"t.{self.entity} = ANY(%(come)s::text[])", ""
        else:
            of_user = self._of_user_sql()
            gained = "" if self.kind is Target.USER else f" OR t.{self.entity} = ANY(%(come)s::text[])"
            news = "" if question.since is None else f"AND (({new}){gained})"
        where = f"AND {self.where}" if self.where else ""
        by = ", ".join([*keys, self.apart] if self.apart else keys)
        return (
            f"SELECT DISTINCT ON ({by}) {', '.join([position, writer, *keys, *values])} FROM {table.name} t "
            f"WHERE {of_user} AND {known} {news} {where} ORDER BY {by}, {position} DESC"
        )

    def _of_user_sql(self) -> str:
        if self.kind is Target.USER:
            return f"t.{self.entity} = %(user)s"
        if self.kind is Target.ROOM:
            return f"t.{self.entity} = ANY(%(rooms)s::text[])"
        # The current state may be newer than ``now``. It does not count for ``late`` users, whose membership changed after
        # ``now``: of those, ``late_contacts`` are contacts.
        return (
            f"(t.{self.entity} = %(user)s OR t.{self.entity} = ANY(%(late_met)s::text[]) "
            f"OR (t.{self.entity} <> ALL(%(late)s::text[]) AND EXISTS (SELECT FROM events_currentstate c "
            f"WHERE c.type = 'm.room.member' AND c.state_key = t.{self.entity} AND c.membership = 'join' "
            f"AND c.room_id = ANY(%(rooms)s::text[]))))"
        )

    def _parameters(self, question: StreamQuery) -> dict[str, Any]:
        shared, since = question.shared, question.since or VectorToken(0)
        # A room or contact gained since: its older rows are new to this client, too.
        gained = shared.rooms_gained if self.kind is Target.ROOM else shared.users_gained
        return {
            "user": question.user_id,
            "rooms": list(shared.rooms),
            "come": list(gained),
            "late": list(shared.late),
            "late_met": list(shared.late_contacts),
            "now_base": question.now.base,
            "now_entries": json.dumps(dict(question.now.entries)),
            "since_base": since.base,
            "since_entries": json.dumps(dict(since.entries)),
        }


def _is_receipt_for(user_id: str, key: Key, value: Mapping[str, Any]) -> bool:
    # not if it is of another user and private, or cannot be read
    data = value["data"]
    return key[2] == user_id or (key[1] != "m.read.private" and isinstance(data, dict) and not data.get("hidden"))


def _thread_of(value: Mapping[str, Any]) -> Key:
    # nothing for an unthreaded receipt, which says how far the whole room was read
    thread = value["data"].get("thread_id") if isinstance(value["data"], dict) else None
    return (thread,) if isinstance(thread, str) and thread else ()


@dataclass(frozen=True, slots=True)
class _TypingUsers:
    # The lists of users who type, without users whom the user ignores.
    lists: LatestRowPerKey

    @property
    def stream(self) -> str:
        return self.lists.stream

    @property
    def kind(self) -> Target:
        return self.lists.kind

    def changes(self, question: StreamQuery) -> StreamChanges:
        found = self.lists.changes(question)
        if not found.changed and not found.gone:
            return found
        question.cursor.execute("SELECT ignored_user_id FROM events_ignoreduser WHERE user_id = %s", [question.user_id])
        ignored = {user for (user,) in question.cursor.fetchall()}
        if not ignored:
            return found
        now, before = self._without(ignored, found), dict[Key, Any]()
        removed = {key for key in found.gone if key[0] in question.shared.rooms_lost}
        if question.since is not None:  # the client is told only of lists that differ from those that it has
            at_since = StreamQuery(question.cursor, question.user_id, question.shared, question.since)
            before = self._without(ignored, self.lists.changes(at_since))
            before = {key: value for key, value in before.items() if key[0] not in question.shared.rooms_gained}
            removed |= {key for key in (*found.changed, *found.gone) if key in before and key not in now}
        changed = {key: value for key, value in now.items() if value != before.get(key)}
        return StreamChanges(changed, frozenset(removed), found.whole)

    def _without(self, ignored: Collection[str], found: StreamChanges) -> dict[Key, Any]:
        lists = {
            key: [user for user in value["user_ids"] if user not in ignored] for key, value in found.changed.items()
        }
        return {key: {"user_ids": users} for key, users in lists.items() if users}


#: Facts of users whom the user ignores are left out.
_NOT_IGNORED = (
    "NOT EXISTS (SELECT FROM events_ignoreduser i WHERE i.user_id = %(user)s AND i.ignored_user_id = t.user_id)"
)
#: The first thread in the text of a receipt's data.
_THREAD = r"""substring(t.data FROM '"thread_id"\s*:\s*("(?:[^"\\]|\\.)*")')"""
_PRESENCE = (
    *("state", "last_active_ts", "last_federation_update_ts", "last_user_sync_ts", "status_msg"),
    "currently_active",
)
_PLAIN: tuple[Provider, ...] = (
    LatestRowPerKey("presence", Target.CONTACT, "user_id", ("user_id",), _PRESENCE),
    _TypingUsers(
        LatestRowPerKey(
            "typing", Target.ROOM, "room_id", ("room_id",), ("user_ids",), lambda value: not value["user_ids"]
        )
    ),
    LatestRowPerKey(
        "receipts",
        Target.ROOM,
        "room_id",
        ("room_id", "receipt_type", "user_id"),
        ("event_id", "json:data"),
        shown=_is_receipt_for,
        where=_NOT_IGNORED,
        inner_key=_thread_of,
        apart=_THREAD,
    ),
    LatestRowPerKey("push_rules", Target.USER, "user_id", ("user_id",)),
    LatestRowPerKey(
        "pushers", Target.USER, "user_id", ("app_id", "pushkey"), ("deleted",), lambda value: value["deleted"]
    ),
    LatestRowPerKey("device_lists", Target.CONTACT, "entity", ("entity",)),
    LatestRowPerKey("to_device", Target.USER, "entity", ("entity",)),
    LatestRowPerKey(
        "tag_account_data", Target.USER, "user_id", ("room_id",), ("json:tags",), lambda value: not value["tags"]
    ),
    LatestRowPerKey("account_data", Target.USER, "user_id", ("room_id", "data_type")),
    LatestRowPerKey("groups", Target.USER, "user_id", ("group_id",), ("type", "json:content")),
    LatestRowPerKey("user_signature", Target.USER, "user_id", ("user_id",)),
)
_providers: dict[str, Provider] = {provider.stream: provider for provider in _PLAIN}


def providers() -> Mapping[str, Provider]:
    """Returns the providers by stream, without ``events``, whose part is made by ``events.sync.rooms``."""
    return dict(_providers)


def join_sync(provider: Provider, concerns: Concerns | None = None) -> None:
    """Makes a stream part of every sync answer.

    Call it at startup (``AppConfig.ready``), in every process.

    ``concerns`` maps a row to the users or rooms that it concerns. For a ``LatestRowPerKey`` the default is derived
    from the columns. Raises ``ValueError`` if ``concerns`` is missing for another provider, or if the stream is part of
    sync already. Raises ``UnknownStream`` for an unknown stream.
    """
    declaration = registry.get(provider.stream).declaration
    if concerns is None and isinstance(provider, LatestRowPerKey):
        place = places_of(declaration.tables[0])[provider.entity]
        concerns = {Target.ROOM: room_in, Target.USER: user_in, Target.CONTACT: contact_in}[provider.kind](place)
    if concerns is None:
        raise ValueError(f"Stream {provider.stream!r}: say whom its rows concern, as join_sync(provider, concerns).")
    route_stream(provider.stream, concerns)
    _providers[provider.stream] = provider


def answer_of(provider: Provider, question: StreamQuery) -> StreamChanges:
    """Returns the provider's changes. If facts after ``since`` were trimmed, returns the whole stream instead."""
    found = provider.changes(question)
    if question.since is None:
        return found
    # The rows are read first, then the low-water mark. In the other order, and without a snapshot, a trim in between
    # would delete rows unnoticed.
    try:
        check_not_trimmed(question.cursor, provider.stream, question.since)
    except ResyncNeeded:
        whole = StreamQuery(question.cursor, question.user_id, question.shared, question.now)
        return provider.changes(whole)
    return found
