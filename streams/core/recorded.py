"""Recorded streams of foreign servers as streams to read: names, declarations, positions (pure).

A recorded stream is called ``NAME/stream``, NAME being that of the record; whoever reads streams by declaration, such as
Spark, reads it like our own. Its wire row is one column of JSON text. Names are letters, digits, ``.``, ``_`` and ``-``, so that
they can stand in SQL text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.json_codec import decode_json

__all__ = [
    "RECORDED_POSITIONS",
    "RECORDED_TRIMMED",
    "check_record_name",
    "is_recorded",
    "recorded_declaration",
    "recorded_names",
    "split_recorded",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STREAM = re.compile(r"[A-Za-z0-9_.-]{1,200}")

#: Name: (writer, up to where its recorded facts were removed) of one recorded stream, for those of which some were.
RECORDED_TRIMMED = """
SELECT p.writer, p.trimmed_upto FROM streams_recordedposition p
JOIN streams_recordedserver s ON s.id = p.server_id
WHERE s.name = %(server)s::text AND p.stream = %(stream)s::text AND p.trimmed_upto > 0
"""
#: Name: (stream, writer, position) of every life of every writer of one recorded stream.
RECORDED_POSITIONS = """
SELECT p.stream, p.writer, p.position FROM streams_recordedposition p
JOIN streams_recordedserver s ON s.id = p.server_id
WHERE s.name = %(server)s::text AND p.stream = %(stream)s::text
"""


def check_record_name(name: str) -> str:
    """The name, if a record may have it; raises ``ValueError``."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a record: use letters, digits, '.', '_' and '-', at most 100.")
    return name


def is_recorded(stream: str) -> bool:
    """Whether this is the name of a recorded stream."""
    return "/" in stream


def split_recorded(name: str) -> tuple[str, str]:
    """Record and stream of ``NAME/stream``; raises ``ValueError``."""
    server, _, stream = name.partition("/")
    if not _STREAM.fullmatch(stream):
        raise ValueError(f"{name!r} is no recorded stream: write NAME/stream, for example main/events.")
    return check_record_name(server), stream


def recorded_names(name: str) -> dict[str, str]:
    """Parameters of the queries above; raises ``ValueError``."""
    server, stream = split_recorded(name)
    return {"server": server, "stream": stream}


def recorded_declaration(name: str) -> StreamDeclaration:
    """How to read the recorded stream ``NAME/stream``; raises ``ValueError``."""
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
