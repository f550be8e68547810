"""Names, declarations and positions of recorded streams: streams of a foreign server that are stored here (pure).

A *record* is all that is stored of one foreign server, under a name. The streams of a record are called
``NAME/stream``. Programs that read streams by declaration, such as Spark, read a recorded stream like any stream of
this program. A row of a recorded stream is one column of JSON text. Names consist of letters, digits, ``.``, ``_`` and
``-``, so that they are safe in SQL text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.json_codec import decode_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STREAM = re.compile(r"[A-Za-z0-9_.-]{1,200}")

#: (writer, position up to which its facts were removed) of one recorded stream, for the writers whose facts were removed.
RECORDED_TRIMMED = """
SELECT p.writer, p.trimmed_upto FROM streams_recordedposition p
JOIN streams_recordedserver s ON s.id = p.server_id
WHERE s.name = %(server)s::text AND p.stream = %(stream)s::text AND p.trimmed_upto > 0
"""
#: (stream, writer, position) of one recorded stream. A foreign writer that started again from a lower position has one row
#: for each of its *lives*.
RECORDED_POSITIONS = """
SELECT p.stream, p.writer, p.position FROM streams_recordedposition p
JOIN streams_recordedserver s ON s.id = p.server_id
WHERE s.name = %(server)s::text AND p.stream = %(stream)s::text
"""


def check_record_name(name: str) -> str:
    """Returns the name if it is allowed as the name of a record. Raises ``ValueError`` otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a record: use letters, digits, '.', '_' and '-', at most 100.")
    return name


def is_recorded(stream: str) -> bool:
    return "/" in stream


def split_recorded(name: str) -> tuple[str, str]:
    """Splits ``NAME/stream`` into the record's name and the stream's name. Raises ``ValueError`` for another form."""
    server, _, stream = name.partition("/")
    if not _STREAM.fullmatch(stream):
        raise ValueError(f"{name!r} is no recorded stream: write NAME/stream, for example main/events.")
    return check_record_name(server), stream


def recorded_names(name: str) -> dict[str, str]:
    """Returns the parameters for ``RECORDED_TRIMMED`` and ``RECORDED_POSITIONS``.

    Raises ``ValueError`` for a name that is not ``NAME/stream``.
    """
    server, stream = split_recorded(name)
    return {"server": server, "stream": stream}


def recorded_declaration(name: str) -> StreamDeclaration:
    """Returns the declaration of the recorded stream ``NAME/stream``. Raises ``ValueError`` for another form."""
    server, stream = split_recorded(name)
    return StreamDeclaration(
        name=name,
        sequence="",
        tables=(
            FactTable(
                name="streams_recordedfact",
                columns=(Column("row", ColumnKind.JSON_TEXT),),
                row=_row,
                id_column="token",
                writer_column="writer",
                where=(
                    f"server_id = (SELECT id FROM streams_recordedserver WHERE name = '{server}') AND stream = '{stream}'"
                ),
                then_by="index",
            ),
        ),
    )


def _row(values: Sequence[Any]) -> Any:
    return decode_json(values[0])
