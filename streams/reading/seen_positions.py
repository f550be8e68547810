"""Returns the present positions of streams to readers in the same database: they look for themselves, if PostgreSQL can say.

A look sees more than the stored rows, which a looker brings up to date a moment later (``streams.reading.looker``). It is
right for everything that lies in the same database, such as the cursor of a named reader. What leaves the database, or
outlives a crash, needs the stored rows: ``streams.reading.possible_positions``.

A stream without holds has only its stored rows. So has a standby, which does not see the locks of its primary, and a
transaction that keeps one snapshot, whose rows are older than any look.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from streams.core.declaration import StreamDeclaration
from streams.core.positions import RETIRED
from streams.holds.look import Seen, look_where_possible
from streams.reading.possible_positions import positions_and_sequence, possible_positions
from streams.reading.rows import StoredPosition


def seen_positions(cursor: Any, streams: Collection[str] | None = None) -> dict[str, dict[str, StoredPosition]]:
    """Returns ``{stream: {writer: position}}`` as ``possible_positions`` does, or the positions of a look if they are higher.

    A writer's first fact is not covered before a looker has stored its row.
    """
    seen = look_where_possible(cursor, streams)
    found = possible_positions(cursor, streams)
    return {stream: _raised(stored, seen.get(stream)) for stream, stored in found.items()}


def seen_positions_and_sequence(
    cursor: Any, declaration: StreamDeclaration
) -> tuple[dict[str, StoredPosition], int | None]:
    """Returns the positions of one stream as ``seen_positions`` does, and the last value of its sequence.

    The value is None as in ``positions_and_sequence``.
    """
    seen = look_where_possible(cursor, [declaration.name])
    stored, given_out = positions_and_sequence(cursor, declaration)
    return _raised(stored, seen.get(declaration.name)), given_out


def _raised(stored: dict[str, StoredPosition], seen: Seen | None) -> dict[str, StoredPosition]:
    # A position that was right at any time stays right, so the higher of two is right. A retired writer is not raised:
    # its facts count up to the linear position.
    if seen is None:
        return stored
    at: Mapping[str, int] = seen.positions_of(writer for writer, row in stored.items() if row.state != RETIRED)
    return {
        writer: replace(row, position=at[writer]) if at.get(writer, 0) > row.position else row
        for writer, row in stored.items()
    }
