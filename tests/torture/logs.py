"""The logs of writers and followers: what each process knew, and when (pure but for one append).

Each line is one ``write`` to a file opened for appending, so a killed process loses at most its last line and the system
keeps the rest. Times come from ``time.monotonic``, which all processes of a machine share.

Writers::

    S TIME STREAM ID ID …  about to send COMMIT for the rows under these IDs
    I TIME STREAM SUM …    about to append facts with these checksums in one message, which also commits them
    D STREAM ID            that COMMIT succeeded, and ID was the first
    R NAME                 an append was refused, or its connection broke: an error that a writer must expect
    E TEXT                 an error that nobody expects

Followers: a list of `Seen` a line, of all streams that moved.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LineLog", "Seen", "checksum", "lines_of", "seen_in"]


class LineLog:
    """Appends whole lines; safe in threads."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, line: str) -> None:
        os.write(self._descriptor, line.encode() + b"\n")


def lines_of(path: Path) -> Iterator[str]:
    """All whole lines."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield line[:-1]


def checksum(row: Any) -> int:
    """Of what a row carries, so that logs stay small."""
    return zlib.crc32(json.dumps(row).encode())


@dataclass(slots=True)
class Seen:
    """One step of a follower on one stream: rows that it was handed, and then where it said to be.

    ``rows`` are ``[writer, ID, checksum]``; ``positions`` names only writers that moved since the step before.
    """

    stream: str
    time: float
    rows: Sequence[tuple[str, int, int]] = ()
    linear: int = 0
    positions: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def line(steps: Sequence[Seen]) -> str:
        """The steps of all streams that belong together."""
        told = [[seen.stream, seen.time, seen.linear, seen.positions, seen.rows] for seen in steps]
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def parse(cls, line: str) -> list[Seen]:
        return [cls(stream, at, rows, linear, positions) for stream, at, linear, positions, rows in json.loads(line)]


def seen_in(path: Path) -> Iterator[Seen]:
    """The steps of a follower over all its lives."""
    for line in lines_of(path):
        yield from Seen.parse(line)
