"""The stream ``federation``: what a federation sender in another process is to send (pure).

It is announced only while this site does not send by itself, and what a sender acknowledges is freed.
"""

from streams.core.declaration import MAIN_PROCESS, Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.row_format import Shape

__all__ = ["FEDERATION", "FEDERATION_TYPES"]

#: What ``type`` may be: an EDU with a key, an EDU, presence with its destinations.
FEDERATION_TYPES = frozenset({"k", "e", "pd"})

_COLUMNS = (Column("type", ColumnKind.TEXT), Column("data", ColumnKind.JSON_TEXT))

#: Row: ``[type, data]``.
FEDERATION = StreamDeclaration(
    name="federation",
    announced_as=MAIN_PROCESS,
    sequence="streams_federation_seq",
    in_memory=True,
    trimmable=False,
    tables=(FactTable(name="streams_federation", columns=_COLUMNS, row=Shape(_COLUMNS, "type", "data")),),
)
