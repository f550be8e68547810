"""Finds out that a sequence was changed or set back, so that no fact gets an ID that readers have passed.

Before its first append to a stream, a process compares the sequence with the tables and with the stored positions. From then
on it knows which IDs it saw given out: an append whose IDs are not above those inserts nothing. The holds of the database
(``streams.holds``) do not need this, as they rely on sequences that nobody sets back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from streams.core.sequence_repair import sequence_repair
from streams.core.sequences import read_sequences
from streams.db import driver
from streams.db.sequences import move_forward
from streams.errors import SequenceBehind, SequenceUnfit
from streams.reading.rows import stored_positions
from streams.runtime.logs import get_logger
from streams.writing.key_locks import create_rows, rows_are_missing

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from streams.core.bound import BoundStream

log = get_logger(__name__)
#: (alias, stream) -> highest ID that this process saw given out.
_known: dict[tuple[str, str], int] = {}
_guard = threading.Lock()


def given_out(stream: BoundStream, connection: BaseDatabaseWrapper) -> int:
    """Returns an ID that was given out before. The next IDs lie above it. The first call examines the sequence.

    Raises ``SequenceUnfit`` or ``SequenceBehind``. If the tables are ahead of the sequence, moves the sequence forward.
    """
    known = _known.get((connection.alias, stream.name))
    return _examine(stream, connection) if known is None else known


def last_given_out(stream: BoundStream, connection: BaseDatabaseWrapper) -> int:
    """Returns the highest ID that this process saw given out, or 0. Makes no query."""
    return _known.get((connection.alias, stream.name), 0)


def record_given_out(stream: BoundStream, connection: BaseDatabaseWrapper, ids: Iterable[int]) -> None:
    key = connection.alias, stream.name
    with _guard:
        _known[key] = max(_known.get(key, 0), *ids)


def not_above(stream: BoundStream, connection: BaseDatabaseWrapper, above: int) -> SequenceBehind:
    """Forgets the stream, and returns the error for IDs that are not above ``above``, an ID that was given out before."""
    # The database may have been restored, or the sequence repaired. The next append examines it again.
    with _guard:
        _known.pop((connection.alias, stream.name), None)
    return SequenceBehind(
        f"Stream {stream.name}: the sequence {stream.declaration.sequence} gave out an ID that is not above {above}, which was "
        f"given out before: somebody set the sequence back, or gave it a cache. Nothing was appended, because followers have "
        f"passed this ID. Run: manage.py check_streams --repair"
    )


def forget_given_out() -> None:
    """Forgets everything. For tests, which empty the tables."""
    with _guard:
        _known.clear()


@driver.advising()
def _examine(stream: BoundStream, connection: BaseDatabaseWrapper) -> int:
    with connection.cursor() as cursor:
        found = read_sequences(cursor, [member.declaration for member in (stream, *stream.sharing)])[stream.name]
        # Of a missing sequence or table, the database's own error says more: which migration makes it.
        if (found.is_there or found.now_called) and any(fault.loses_facts for fault in found.faults):
            raise SequenceUnfit(
                f"Stream {stream.name}: nothing was appended, because facts would be lost. {found.sentence}"
            )
        stored = stored_positions(cursor, [stream.name]).get(stream.name, {})
        given = stream.sequence_value(cursor)
        move_to = sequence_repair(
            stream.name,
            {writer: at.position for writer, at in stored.items()},
            sequence_value=given,
            table_maximum=stream.table_maximum(cursor),
            empty_position=stream.declaration.empty_position,
        )
        if move_to is not None:
            log.warning("stream.sequence_moved", stream=stream.name, was=given, to=move_to)
            move_forward(cursor, stream.declaration.sequence, move_to)
            given = move_to
        is_first = rows_are_missing(cursor, stream)
    if is_first:
        # Of its own connection: a caller's transaction would hold the rows until it ends.
        direct = driver.direct_connection(connection.alias, application_name="replsite key rows")
        with closing(direct), direct.cursor() as cursor:
            create_rows(cursor, stream)
    record_given_out(stream, connection, [given])
    return given


def _after_fork() -> None:
    global _guard  # noqa: PLW0603
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
