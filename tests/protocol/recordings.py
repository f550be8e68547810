"""Reads the recordings of real connections in ``tests/data/transcripts``: who sent which bytes, and how it ended."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "transcripts"
_REPEATED = re.compile(r'bytes "(.*)" \+ (\d+) times "(.)" \+ LF')
_SECONDS = re.compile(r"[*#] \[ *([0-9.]+) s\]")


@dataclass(frozen=True)
class Step:
    """Bytes of one side ("server" or "client"), or how the connection ended ("end"); seconds since the start."""

    who: str
    data: bytes
    seconds: float


def names() -> list[str]:
    return sorted(path.name.removesuffix(".txt.gz") for path in FOLDER.glob("*.txt.gz"))


def steps(name: str) -> Iterator[Step]:
    seconds = 0.0
    with gzip.open(FOLDER / f"{name}.txt.gz", "rt", encoding="utf-8", newline="\n") as lines:
        for line in (line.removesuffix("\n") for line in lines):
            if found := _SECONDS.match(line):
                seconds = float(found[1])
            if line.startswith("> "):
                yield Step("server", line[2:].encode() + b"\n", seconds)
            elif line.startswith("< "):
                yield Step("client", line[2:].encode() + b"\n", seconds)
            elif line.startswith("<x "):
                yield Step("client", bytes.fromhex(line[3:]), seconds)
            elif line.startswith("<r "):
                yield Step("client", _described(line[3:]), seconds)
            elif "connection closed by" in line:
                yield Step("end", line.rpartition(" ")[2].encode(), seconds)


def _described(text: str) -> bytes:
    found = _REPEATED.match(text)
    assert found, text
    return found[1].encode() + int(found[2]) * found[3].encode() + b"\n"
