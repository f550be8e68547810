"""The stream ``groups`` (pure)."""

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.row_format import Shape

__all__ = ["GROUPS"]

_COLUMNS = (
    Column("group_id", ColumnKind.TEXT),
    Column("user_id", ColumnKind.TEXT),
    Column("type", ColumnKind.TEXT),
    Column("content", ColumnKind.JSON_TEXT),
)

#: Row: ``[group_id, user_id, type, content]``; type is ``membership``, content an object.
GROUPS = StreamDeclaration(
    name="groups",
    trimmable=False,
    sequence="streams_groupchange_seq",
    tables=(
        FactTable(
            name="streams_groupchange",
            columns=_COLUMNS,
            row=Shape(_COLUMNS, *(column.name for column in _COLUMNS)),
        ),
    ),
)
