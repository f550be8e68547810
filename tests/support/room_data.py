"""The shipped room histories, their oracles and the vectors, as plain values."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
ROOMS = DATA / "rooms"
ROOM_NAMES = sorted(path.name for path in ROOMS.iterdir() if path.is_dir())


def json_lines(path: Path) -> Iterator[Any]:
    """The values of a compressed JSON Lines file."""
    with gzip.open(path) as lines:
        yield from map(json.loads, lines)


def vectors(path: str) -> list[Any]:
    """The cases of a vector file, e.g. ``events/hash_and_redaction``."""
    return list(json_lines(DATA / "vectors" / f"{path}.jsonl.gz"))


@cache
def event_lines(room: str) -> tuple[bytes, ...]:
    """The lines of a room's history as they are imported."""
    with gzip.open(ROOMS / room / "events.jsonl.gz") as lines:
        return tuple(line.rstrip(b"\n") for line in lines)


@cache
def stored_events(room: str) -> tuple[dict[str, Any], ...]:
    """The same, parsed."""
    return tuple(map(json.loads, event_lines(room)))


def oracle(room: str, name: str) -> Any:
    """An ``oracle_*`` file: a list for JSON Lines, else the value."""
    plain, packed = ROOMS / room / f"oracle_{name}.json", ROOMS / room / f"oracle_{name}.json.gz"
    if plain.exists():
        return json.loads(plain.read_bytes())
    if packed.exists():
        return json.loads(gzip.decompress(packed.read_bytes()))
    return list(json_lines(ROOMS / room / f"oracle_{name}.jsonl.gz"))
