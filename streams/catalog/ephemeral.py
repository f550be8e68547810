"""The streams ``typing`` and ``receipts``: what happens in a room without being part of its history (pure)."""

from streams.core.declaration import MAIN_PROCESS, Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.row_format import Shape

__all__ = ["RECEIPTS", "TYPING"]

#: Row: ``[room_id, [user_id, …]]``: everybody who is typing there now; an empty list means nobody.
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

#: Row: ``[room_id, receipt_type, user_id, event_id, data]``, data an object such as ``{"ts":1,"hidden":false}``.
RECEIPTS = StreamDeclaration(
    name="receipts",
    trimmable=False,
    sequence="streams_receipt_seq",
    tables=(
        FactTable(
            name="streams_receipt",
            columns=_RECEIPT_COLUMNS,
            row=Shape(_RECEIPT_COLUMNS, *(column.name for column in _RECEIPT_COLUMNS)),
        ),
    ),
)
