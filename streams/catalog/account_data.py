"""The streams ``tag_account_data`` and ``account_data`` (pure).

They share a sequence, so the position of both moves when either is written.
"""

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration

__all__ = ["ACCOUNT_DATA", "TAG_ACCOUNT_DATA"]

_SEQUENCE = "streams_accountdatachange_seq"

#: Row: ``[user_id, room_id, tags]``, tags a *string* that holds the JSON of all of the user's tags of the room.
TAG_ACCOUNT_DATA = StreamDeclaration(
    name="tag_account_data",
    trimmable=False,
    sequence=_SEQUENCE,
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

#: Row: ``[user_id, room_id or null, data_type]``; no room: global account data.
ACCOUNT_DATA = StreamDeclaration(
    name="account_data",
    sequence=_SEQUENCE,
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
