"""Declares the fourteen streams of a homeserver besides events: their tables and their rows on the wire (pure).

The comment above each declaration gives the row as a JSON array. The replication protocol defines these rows.
"""

from typing import Any

from streams.core.declaration import MAIN_PROCESS, Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.row_format import RowFormat


def _texts(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, ColumnKind.TEXT) for name in names)


def _stream(
    name: str, table: str, columns: tuple[Column, ...], newest_per: str = "", sequence: str = "", **options: Any
) -> StreamDeclaration:
    """Returns the declaration of a stream with one table, all of whose columns are sent.

    Its sequence is called after the table, unless it is that of another stream's table.
    """
    has_json = any(column.kind is ColumnKind.JSON_TEXT for column in columns)
    row = RowFormat(columns, *(column.name for column in columns)) if has_json else list
    tables = (FactTable(table, columns, row, newest_per=newest_per),)
    return StreamDeclaration(name, tables, sequence or f"{table}_seq", **options)


#: The values of ``state``.
PRESENCE_STATES = frozenset({"online", "offline", "unavailable", "busy"})

#: Row: ``[user_id, state, last_active_ts, last_federation_update_ts, last_user_sync_ts, status_msg or null,
#: currently_active]``, times in ms. The table keeps only the newest row of each user, the user's present state.
PRESENCE = _stream(
    "presence",
    "streams_presence",
    (
        *_texts("user_id", "state"),
        Column("last_active_ts", ColumnKind.BIGINT),
        Column("last_federation_update_ts", ColumnKind.BIGINT),
        Column("last_user_sync_ts", ColumnKind.BIGINT),
        Column("status_msg", ColumnKind.TEXT, nullable=True),
        Column("currently_active", ColumnKind.BOOLEAN),
    ),
    newest_per="user_id",
    announced_as=MAIN_PROCESS,
    trimmable=False,
)

#: Options of streams whose facts are announced under one name, kept for minutes, and deleted without a trim.
_OF_MINUTES: dict[str, Any] = {"announced_as": MAIN_PROCESS, "in_memory": True, "trimmable": False}

#: Row: ``[destination, user_id]``: the user's presence is to be sent to that server. A fact has a row per pair.
PRESENCE_FEDERATION = _stream(
    "presence_federation", "streams_presencefederation", _texts("destination", "user_id"), **_OF_MINUTES
)

#: Row: ``[room_id, [user_id, …]]``: all users who are typing in the room now. The list may be empty.
TYPING = _stream(
    "typing", "streams_typing", (*_texts("room_id"), Column("user_ids", ColumnKind.TEXT_ARRAY)), **_OF_MINUTES
)

#: Row: ``[room_id, receipt_type, user_id, event_id, data]``. ``data`` is an object such as ``{"ts":1,"hidden":false}``.
RECEIPTS = _stream(
    "receipts",
    "streams_receipt",
    (*_texts("room_id", "receipt_type", "user_id", "event_id"), Column("data", ColumnKind.JSON_TEXT)),
    trimmable=False,
)

#: Row: ``[user_id]``: the user's push rules changed.
PUSH_RULES = _stream("push_rules", "streams_pushrulechange", _texts("user_id"))

#: Row: ``[user_id, app_id, pushkey, deleted]``.
PUSHERS = _stream(
    "pushers",
    "streams_pusherchange",
    (*_texts("user_id", "app_id", "pushkey"), Column("deleted", ColumnKind.BOOLEAN)),
)

#: Row: ``[cache_name, keys or null, invalidation_ts in ms]``; null keys mean the whole cache.
CACHES = _stream(
    "caches",
    "streams_cacheinvalidation",
    (
        *_texts("cache_name"),
        Column("keys", ColumnKind.TEXT_ARRAY, nullable=True),
        Column("invalidation_ts", ColumnKind.BIGINT),
    ),
)

#: Row: ``[entity]``: a user whose devices changed, or the name of a server that must be notified.
DEVICE_LISTS = _stream("device_lists", "streams_devicelistchange", _texts("entity"))

#: Row: ``[entity]``: a local user or a server with new messages to its devices. A fact has a row per recipient.
TO_DEVICE = _stream("to_device", "streams_todevicemessage", _texts("entity"))

#: Row: ``[user_id]``: this user's signatures of another user's keys changed. A fact also advances ``device_lists``, and the
#: other way round.
USER_SIGNATURE = _stream(
    "user_signature", "streams_usersignaturechange", _texts("user_id"), sequence=DEVICE_LISTS.sequence
)

# ``federation`` holds what a federation sender in another process must send. It is announced only while this site does not
# send by itself. A fact is deleted once every known sender has acknowledged it.

#: The values of ``type``: an EDU with a key (``k``), an EDU (``e``), presence with its destinations (``pd``).
FEDERATION_TYPES = frozenset({"k", "e", "pd"})
#: For this long a fact is kept that a sender has not acknowledged. A sender that was silent for longer is ignored.
FEDERATION_KEPT_SECONDS = 3600.0

#: Row: ``[type, data]``. ``type`` is one of `FEDERATION_TYPES`.
FEDERATION = _stream(
    "federation", "streams_federation", (*_texts("type"), Column("data", ColumnKind.JSON_TEXT)), **_OF_MINUTES
)

#: Row: ``[user_id, room_id or null, data_type]``. Null means global account data.
ACCOUNT_DATA = _stream(
    "account_data",
    "streams_accountdatachange",
    (*_texts("user_id"), Column("room_id", ColumnKind.TEXT, nullable=True), *_texts("data_type")),
)

#: Row: ``[user_id, room_id, tags]``. ``tags`` is a *string* with the JSON of all of the user's tags for the room. A fact also
#: advances ``account_data``, and the other way round.
TAG_ACCOUNT_DATA = _stream(
    "tag_account_data",
    "streams_tagchange",
    _texts("user_id", "room_id", "tags"),
    sequence=ACCOUNT_DATA.sequence,
    trimmable=False,
)

#: Row: ``[group_id, user_id, type, content]``. ``type`` is ``membership``, ``content`` an object.
GROUPS = _stream(
    "groups",
    "streams_groupchange",
    (*_texts("group_id", "user_id", "type"), Column("content", ColumnKind.JSON_TEXT)),
    trimmable=False,
)


def declarations() -> tuple[StreamDeclaration, ...]:
    """Returns the fourteen declarations, in the order of the table of streams in the replication protocol."""
    return (
        PRESENCE,
        PRESENCE_FEDERATION,
        TYPING,
        RECEIPTS,
        PUSH_RULES,
        PUSHERS,
        CACHES,
        DEVICE_LISTS,
        TO_DEVICE,
        FEDERATION,
        TAG_ACCOUNT_DATA,
        ACCOUNT_DATA,
        GROUPS,
        USER_SIGNATURE,
    )
