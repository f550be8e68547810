"""Declares the fourteen streams of a homeserver besides events: their tables and their rows on the wire (pure).

The comment above each declaration gives the row as a JSON array. The replication protocol defines these rows.
"""

from streams.core.declaration import MAIN_PROCESS, Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.row_format import RowFormat

#: The values of ``state``.
PRESENCE_STATES = frozenset({"online", "offline", "unavailable", "busy"})

#: Row: ``[user_id, state, last_active_ts, last_federation_update_ts, last_user_sync_ts, status_msg or null,
#: currently_active]``, times in ms. The table keeps only the newest row of each user, the user's present state.
PRESENCE = StreamDeclaration(
    name="presence",
    announced_as=MAIN_PROCESS,
    sequence="streams_presence_seq",
    trimmable=False,
    tables=(
        FactTable(
            name="streams_presence",
            columns=(
                Column("user_id", ColumnKind.TEXT),
                Column("state", ColumnKind.TEXT),
                Column("last_active_ts", ColumnKind.BIGINT),
                Column("last_federation_update_ts", ColumnKind.BIGINT),
                Column("last_user_sync_ts", ColumnKind.BIGINT),
                Column("status_msg", ColumnKind.TEXT, nullable=True),
                Column("currently_active", ColumnKind.BOOLEAN),
            ),
            newest_per="user_id",
        ),
    ),
)

#: Row: ``[destination, user_id]``: the user's presence is to be sent to that server. A fact has a row per pair.
PRESENCE_FEDERATION = StreamDeclaration(
    name="presence_federation",
    announced_as=MAIN_PROCESS,
    sequence="streams_presencefederation_seq",
    in_memory=True,
    trimmable=False,
    tables=(
        FactTable(
            name="streams_presencefederation",
            columns=(Column("destination", ColumnKind.TEXT), Column("user_id", ColumnKind.TEXT)),
        ),
    ),
)

#: Row: ``[room_id, [user_id, …]]``: all users who are typing in the room now. The list may be empty.
TYPING = StreamDeclaration(
    name="typing",
    announced_as=MAIN_PROCESS,
    sequence="streams_typing_seq",
    in_memory=True,
    trimmable=False,
    tables=(
        FactTable(
            name="streams_typing",
            columns=(Column("room_id", ColumnKind.TEXT), Column("user_ids", ColumnKind.TEXT_ARRAY)),
        ),
    ),
)

_RECEIPT_COLUMNS = (
    Column("room_id", ColumnKind.TEXT),
    Column("receipt_type", ColumnKind.TEXT),
    Column("user_id", ColumnKind.TEXT),
    Column("event_id", ColumnKind.TEXT),
    Column("data", ColumnKind.JSON_TEXT),
)

#: Row: ``[room_id, receipt_type, user_id, event_id, data]``. ``data`` is an object such as ``{"ts":1,"hidden":false}``.
RECEIPTS = StreamDeclaration(
    name="receipts",
    trimmable=False,
    sequence="streams_receipt_seq",
    tables=(
        FactTable(
            name="streams_receipt",
            columns=_RECEIPT_COLUMNS,
            row=RowFormat(_RECEIPT_COLUMNS, *(column.name for column in _RECEIPT_COLUMNS)),
        ),
    ),
)

#: Row: ``[user_id]``: the user's push rules changed.
PUSH_RULES = StreamDeclaration(
    name="push_rules",
    sequence="streams_pushrulechange_seq",
    tables=(FactTable(name="streams_pushrulechange", columns=(Column("user_id", ColumnKind.TEXT),)),),
)

#: Row: ``[user_id, app_id, pushkey, deleted]``.
PUSHERS = StreamDeclaration(
    name="pushers",
    sequence="streams_pusherchange_seq",
    tables=(
        FactTable(
            name="streams_pusherchange",
            columns=(
                Column("user_id", ColumnKind.TEXT),
                Column("app_id", ColumnKind.TEXT),
                Column("pushkey", ColumnKind.TEXT),
                Column("deleted", ColumnKind.BOOLEAN),
            ),
        ),
    ),
)

#: Row: ``[cache_name, keys or null, invalidation_ts in ms]``; null keys mean the whole cache.
CACHES = StreamDeclaration(
    name="caches",
    sequence="streams_cacheinvalidation_seq",
    tables=(
        FactTable(
            name="streams_cacheinvalidation",
            columns=(
                Column("cache_name", ColumnKind.TEXT),
                Column("keys", ColumnKind.TEXT_ARRAY, nullable=True),
                Column("invalidation_ts", ColumnKind.BIGINT),
            ),
        ),
    ),
)

# ``device_lists`` and ``user_signature`` share a sequence. A fact in either of them advances the position of both.
_DEVICE_SEQUENCE = "streams_devicelistchange_seq"

#: Row: ``[entity]``: a user whose devices changed, or the name of a server that must be notified.
DEVICE_LISTS = StreamDeclaration(
    name="device_lists",
    sequence=_DEVICE_SEQUENCE,
    tables=(FactTable(name="streams_devicelistchange", columns=(Column("entity", ColumnKind.TEXT),)),),
)

#: Row: ``[entity]``: a local user or a server with new messages to its devices. A fact has a row per recipient.
TO_DEVICE = StreamDeclaration(
    name="to_device",
    sequence="streams_todevicemessage_seq",
    tables=(FactTable(name="streams_todevicemessage", columns=(Column("entity", ColumnKind.TEXT),)),),
)

#: Row: ``[user_id]``: this user's signatures of another user's keys changed.
USER_SIGNATURE = StreamDeclaration(
    name="user_signature",
    sequence=_DEVICE_SEQUENCE,
    tables=(FactTable(name="streams_usersignaturechange", columns=(Column("user_id", ColumnKind.TEXT),)),),
)

# ``federation`` holds what a federation sender in another process must send. It is announced only while this site does not
# send by itself. A fact is deleted once every known sender has acknowledged it.

#: The values of ``type``: an EDU with a key (``k``), an EDU (``e``), presence with its destinations (``pd``).
FEDERATION_TYPES = frozenset({"k", "e", "pd"})
#: For this long a fact is kept that a sender has not acknowledged. A sender that was silent for longer is ignored.
FEDERATION_KEPT_SECONDS = 3600.0

_FEDERATION_COLUMNS = (Column("type", ColumnKind.TEXT), Column("data", ColumnKind.JSON_TEXT))

#: Row: ``[type, data]``. ``type`` is one of `FEDERATION_TYPES`.
FEDERATION = StreamDeclaration(
    name="federation",
    announced_as=MAIN_PROCESS,
    sequence="streams_federation_seq",
    in_memory=True,
    trimmable=False,
    tables=(
        FactTable(
            name="streams_federation", columns=_FEDERATION_COLUMNS, row=RowFormat(_FEDERATION_COLUMNS, "type", "data")
        ),
    ),
)

# ``tag_account_data`` and ``account_data`` also share a sequence.
_ACCOUNT_DATA_SEQUENCE = "streams_accountdatachange_seq"

#: Row: ``[user_id, room_id, tags]``. ``tags`` is a *string* with the JSON of all of the user's tags for the room.
TAG_ACCOUNT_DATA = StreamDeclaration(
    name="tag_account_data",
    trimmable=False,
    sequence=_ACCOUNT_DATA_SEQUENCE,
    tables=(
        FactTable(
            name="streams_tagchange",
            columns=(
                Column("user_id", ColumnKind.TEXT),
                Column("room_id", ColumnKind.TEXT),
                Column("tags", ColumnKind.TEXT),
            ),
        ),
    ),
)

#: Row: ``[user_id, room_id or null, data_type]``. Null means global account data.
ACCOUNT_DATA = StreamDeclaration(
    name="account_data",
    sequence=_ACCOUNT_DATA_SEQUENCE,
    tables=(
        FactTable(
            name="streams_accountdatachange",
            columns=(
                Column("user_id", ColumnKind.TEXT),
                Column("room_id", ColumnKind.TEXT, nullable=True),
                Column("data_type", ColumnKind.TEXT),
            ),
        ),
    ),
)

_GROUP_COLUMNS = (
    Column("group_id", ColumnKind.TEXT),
    Column("user_id", ColumnKind.TEXT),
    Column("type", ColumnKind.TEXT),
    Column("content", ColumnKind.JSON_TEXT),
)

#: Row: ``[group_id, user_id, type, content]``. ``type`` is ``membership``, ``content`` an object.
GROUPS = StreamDeclaration(
    name="groups",
    trimmable=False,
    sequence="streams_groupchange_seq",
    tables=(
        FactTable(
            name="streams_groupchange",
            columns=_GROUP_COLUMNS,
            row=RowFormat(_GROUP_COLUMNS, *(column.name for column in _GROUP_COLUMNS)),
        ),
    ),
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
