"""Telling and hearing that positions moved.

A poke says ``stream writer position`` at most, and may be lost: whoever listens also looks at the table of positions after
each (re)connection and now and then. It never carries facts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streams.notifications import NotifyListener

__all__ = ["CHANNEL", "Poke", "PokeListener", "poke"]

CHANNEL = "replsite_streams"
_MOST_DIGITS = 18  # a bigint holds each such number


@dataclass(frozen=True, slots=True)
class Poke:
    """A writer's position rose; without a position: the set of writers changed, look at the table."""

    stream: str
    writer: str
    position: int | None

    @classmethod
    def parse(cls, payload: str) -> Poke:
        """Read a NOTIFY payload; anything odd means "look at the table"."""
        parts = payload.split(" ")
        is_position = len(parts) == 3 and parts[2].isdecimal() and len(parts[2]) <= _MOST_DIGITS
        position = int(parts[2]) if is_position else None
        return cls(parts[0], parts[1] if len(parts) > 1 else "", position)


def poke(cursor: Any, stream: str, writer: str, position: int | None = None) -> None:
    """Tell everybody, once the cursor's transaction is committed; without a position: the set of writers changed."""
    payload = f"{stream} {writer}" if position is None else f"{stream} {writer} {position}"
    cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


class PokeListener(NotifyListener[Poke]):
    """Calls ``on_pokes`` with what was heard, and with an empty list after each (re)connection ("look at everything")."""

    def __init__(self, on_pokes: Callable[[list[Poke]], None], using: str | None = None, name: str = "reader") -> None:
        super().__init__(CHANNEL, Poke.parse, on_pokes, using, f"pokes {name}")
