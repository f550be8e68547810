"""Reads stored positions, and lowers wrong ones: those above the last value of the stream's sequence.

The sequence gave out every ID that is complete, so no correct position can lie above the last value of the sequence. A
wrong position comes from a dump that was put together by hand, from a changed row, or from a mistake of an older
program. If readers used the wrong position, they would skip the facts that get IDs up to it later: a named reader would
store a cursor behind these facts, and a cache would keep values that they invalidate.

So a writer with a wrong position is treated as if it were at the position that was known before. Readers of the stream
get no further until an operator repairs the stream. ``manage.py check_streams`` names the stream.

Readers whose cursor lies in the same database look for themselves (``seen_positions_and_sequence``), and see more than the
stored rows, which a looker brings up to date a moment later. What leaves the database, or outlives a crash, needs the stored
rows. So do a stream without holds, a standby, which does not see the locks of its primary, and a transaction that keeps one
snapshot, whose rows are older than any look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

from streams.core import lookup
from streams.core.declaration import StreamDeclaration
from streams.core.positions import RETIRED
from streams.core.queries import STORED_POSITIONS
from streams.core.sequences import is_altered_sql, last_values, values_of_altered
from streams.holds.look import LOOK_WHERE_POSSIBLE, Seen, seen_of
from streams.reading.rows import StoredPosition, stored_positions
from streams.runtime.logs import get_logger

log = get_logger(__name__)
#: Longest wait of a reader of many streams for a lock on the sequence or the table of one. A short ALTER SEQUENCE ends sooner.
LOCK_SECONDS = 0.25
#: The SQLSTATE of a lock that was not free in time. Executors of Spark have no module of the driver's errors.
_LOCK_NOT_AVAILABLE = "55P03"
_COLUMNS = len(fields(StoredPosition))
#: The last value of a sequence, 0 if it gave out none, or null if it cannot be read.
_LAST_VALUE = """CASE WHEN has_sequence_privilege(to_regclass(given.sequence), 'USAGE, SELECT')
                      THEN coalesce(pg_sequence_last_value(to_regclass(given.sequence)),
                                    (NOT has_sequence_privilege(to_regclass(given.sequence), 'SELECT'))::int) END"""
#: The same, or ``_IS_ALTERED`` for a sequence that somebody is altering, which nobody can read.
_IS_ALTERED = -1
_AT_ONCE = f"CASE WHEN {is_altered_sql('to_regclass(given.sequence)')} THEN {_IS_ALTERED} ELSE {_LAST_VALUE} END"
#: A standby may know positions from elsewhere before it has the values of the sequences.
_GIVEN_OUT = f"""
SELECT given.name, {_AT_ONCE} FROM unnest(%(names)s::text[], %(sequences)s::text[]) AS given (name, sequence)
WHERE NOT pg_is_in_recovery()
"""
#: Stored positions, each with the last value of its stream's sequence, or null if that cannot be read. Sequences are read after
#: the snapshot of the positions was taken, so their values are never below a correct position.
_WITH_GIVEN_OUT = f"""
SELECT stored.*, {_LAST_VALUE}
FROM ({STORED_POSITIONS}) AS stored
LEFT JOIN unnest(%(names)s::text[], %(sequences)s::text[]) AS given (name, sequence) ON given.name = stored.stream
"""
_WITH_GIVEN_OUT_AT_ONCE = _WITH_GIVEN_OUT.replace(_LAST_VALUE, _AT_ONCE)
#: The same, each with a look at its stream, or nulls where none is possible. The rows are those of the statement's snapshot, so
#: they are older than the look. That is right: what is not known of a writer holds all others back in ``Seen.positions_of``.
_WITH_SEEN = f"""
WITH seen AS MATERIALIZED ({LOOK_WHERE_POSSIBLE})
SELECT known.*, seen.given, seen."position", seen.classes, seen.bounds
FROM ({_WITH_GIVEN_OUT}) AS known LEFT JOIN seen USING (stream)
"""
#: (stream, writer) -> the wrong position that was logged last for this writer.
_logged: dict[tuple[str, str], int] = {}


class At(Protocol):
    """A writer's position as the caller knew it before."""

    @property
    def position(self) -> int: ...


def possible_positions(
    cursor: Any,
    streams: Collection[str] | None = None,
    known: Mapping[str, Mapping[str, At]] | None = None,
    *,
    reads_often: bool = False,
) -> dict[str, dict[str, StoredPosition]]:
    """Returns ``{stream: {writer: position}}`` as ``stored_positions`` does, but with no position above the sequence.

    A position above the stream's sequence is replaced by the writer's position in ``known``, which are the positions that
    the caller knew before. A writer that is not in ``known`` gets the lowest position of the stream's other writers.
    Streams in memory are not checked, because they restart together with their sequences.

    While somebody is altering a sequence, its stream stays where it is ``known``, and no other stream waits. If nothing is
    known of the stream, the sequence's row is read instead. It is not checked while that is locked as well, as by a RENAME.
    A caller that ``reads_often`` has a connection with ``LOCK_SECONDS``.
    """
    unmoved: dict[str, dict[str, StoredPosition]] = {}
    if streams is None and known:
        # Nothing to compare: what was known before is at or below the sequence, or counts as what was known before.
        found = stored_positions(cursor)
        unmoved = {
            name: stored for name, stored in found.items() if _positions(stored) == _positions(known.get(name, {}))
        }
        streams = found.keys() - unmoved.keys()
        if not streams:
            return unmoved
    declared = [bound.declaration for bound in lookup.all_streams() if streams is None or bound.name in streams]
    try:
        # To ask for locks at each read would cost more than the read.
        found, given_out, _ = _read(
            cursor, streams, declared, _WITH_GIVEN_OUT if reads_often else _WITH_GIVEN_OUT_AT_ONCE
        )
    except Exception as error:
        if _LOCK_NOT_AVAILABLE not in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None)):
            raise
        found, given_out, _ = _read(cursor, streams, declared, _WITH_GIVEN_OUT_AT_ONCE)
    given_out |= _of_rows(cursor, given_out, [d for d in declared if not (known or {}).get(d.name)])
    return unmoved | {
        name: _possible(stored, given_out.get(name), (known or {}).get(name, {})) for name, stored in found.items()
    }


def went_back(known: Mapping[str, Mapping[str, At]], found: Mapping[str, Mapping[str, At]]) -> bool:
    """Returns true if a ``known`` position is lower in ``found``, what was read since, or if a stream has none any more.

    Then the database was restored without a loss of the connection, or the stream was repaired. Streams that can restart at 0
    do not count. The row of one writer among others may be gone, because somebody has deleted it.
    """
    return any(
        not (rows := found.get(stream))
        or any(writer in rows and rows[writer].position < at.position for writer, at in writers.items())
        for stream, writers in known.items()
        if writers and not may_restart(stream)
    )


def may_restart(stream: str) -> bool:
    bound = lookup.find(stream)
    return bound is None or bound.declaration.in_memory


def _positions(stored: Mapping[str, At]) -> dict[str, int]:
    return {writer: at.position for writer, at in stored.items()}


def positions_and_sequence(
    cursor: Any, declaration: StreamDeclaration, known: Mapping[str, At] | None = None
) -> tuple[dict[str, StoredPosition], int | None]:
    """Returns the possible positions of one stream, and the last value of its sequence.

    The stream need not be bound to a model. The last value is None for a stream in memory, and if the database role may
    not read the sequence. Waits for who alters the sequence, unless ``known`` is given, as in ``possible_positions``.
    """
    stored, last_value, _ = _of_one(
        cursor, declaration, _WITH_GIVEN_OUT if known is None else _WITH_GIVEN_OUT_AT_ONCE, known
    )
    return stored, None if last_value == _IS_ALTERED else last_value


def seen_positions_and_sequence(
    cursor: Any, declaration: StreamDeclaration
) -> tuple[dict[str, StoredPosition], int | None]:
    """Returns the same as ``positions_and_sequence``, but the positions of a look if they are higher.

    A writer's first fact is not covered before a looker has stored its row. Facts up to these positions must be read by a
    later statement, and what is made of them must lie in this database.
    """
    stored, last_value, seen = _of_one(cursor, declaration, _WITH_SEEN)
    return _raised(stored, seen), last_value


def _of_one(
    cursor: Any, declaration: StreamDeclaration, statement: str, known: Mapping[str, At] | None = None
) -> tuple[dict[str, StoredPosition], int | None, Seen | None]:
    name = declaration.name
    found, given_out, seen = _read(cursor, [name], [declaration], statement)
    given_out |= _of_rows(cursor, given_out, () if known else (declaration,))
    stored, last_value = found.get(name, {}), given_out.get(name)
    return _possible(stored, last_value, known or {}), last_value, seen.get(name)


def given_out(cursor: Any, streams: Collection[str]) -> dict[str, int]:
    """Reads the streams' sequences. Returns ``{stream: highest possible position}``.

    The result lacks streams in memory, unknown streams, and streams whose sequence cannot be read. On a standby the
    result is empty.
    """
    sequences = {
        bound.name: bound.declaration.sequence
        for bound in lookup.all_streams()
        if bound.name in streams and not bound.declaration.in_memory
    }
    cursor.execute(_GIVEN_OUT, {"names": list(sequences), "sequences": list(sequences.values())})
    found = {name: last_value for name, last_value in cursor.fetchall() if last_value not in (None, _IS_ALTERED)}
    return {name: max(last_value, 1) for name, last_value in _true_values(cursor, found, sequences, found).items()}


def _read(
    cursor: Any,
    streams: Collection[str] | None,
    declared: Iterable[StreamDeclaration],
    statement: str = _WITH_GIVEN_OUT,
) -> tuple[dict[str, dict[str, StoredPosition]], dict[str, int], dict[str, Seen]]:
    """Returns the stored positions, ``{stream: last value of its sequence}``, and what a look saw, if the statement looks.

    The second result lacks streams that are in memory or not in ``declared``, and streams whose sequence cannot be
    read. It may have ``_IS_ALTERED``.
    """
    sequences = {stream.name: stream.sequence for stream in declared if not stream.in_memory}
    cursor.execute(
        statement,
        {
            "streams": None if streams is None else list(streams),
            "names": list(sequences),
            "sequences": list(sequences.values()),
        },
    )
    found: dict[str, dict[str, StoredPosition]] = {}
    given_out: dict[str, int] = {}
    seen: dict[str, Seen] = {}
    for row in cursor.fetchall():
        stored, last_value, of_seen = StoredPosition(*row[:_COLUMNS]), row[_COLUMNS], row[_COLUMNS + 1 :]
        found.setdefault(stored.stream, {})[stored.writer] = stored
        if last_value is not None:
            given_out[stored.stream] = last_value
        if of_seen and of_seen[0] is not None:
            seen[stored.stream] = seen_of(*of_seen)
    beyond = {name for name, stored in found.items() if any(at.position > 1 for at in stored.values())}
    return found, _true_values(cursor, given_out, sequences, beyond), seen


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


def _true_values(
    cursor: Any, given_out: Mapping[str, int], sequences: Mapping[str, str], streams: Collection[str]
) -> dict[str, int]:
    # ``setval(…, 41, false)`` says that 40 IDs were given out, as does a dump.
    unknown = {name: sequences[name] for name in streams if given_out.get(name) == 0}
    values = last_values(cursor, {*unknown.values()}) if unknown else {}
    return {**given_out, **{name: values[sequence] for name, sequence in unknown.items()}}


def _of_rows(cursor: Any, given_out: Mapping[str, int], declared: Iterable[StreamDeclaration]) -> dict[str, int]:
    """Returns what sequences gave out that somebody is altering, as far as their rows can be read."""
    # Without this: a position is wrong, at 1,000 of a sequence at 900. Somebody begins an ALTER SEQUENCE, and the broadcaster
    # starts. It shows 1,000. After a ROLLBACK the next facts get IDs that its clients have passed.
    altered = {d.name: d.sequence for d in declared if given_out.get(d.name) == _IS_ALTERED}
    if not altered:
        return {}
    values = values_of_altered(cursor, list(altered.values()))
    return {name: values[sequence] for name, sequence in altered.items() if sequence in values}


def _possible(
    stored: dict[str, StoredPosition], given_out: int | None, known: Mapping[str, At]
) -> dict[str, StoredPosition]:
    if given_out == _IS_ALTERED:
        kept = {
            writer: replace(at, position=known[writer].position) for writer, at in stored.items() if writer in known
        }
        return kept or stored
    return stored if given_out is None else _held(stored, max(given_out, 1), known)


def _held(stored: dict[str, StoredPosition], given_out: int, known: Mapping[str, At]) -> dict[str, StoredPosition]:
    """Returns ``stored`` with all positions above ``given_out`` lowered. Logs each wrong position once.

    ``given_out`` is the last ID that the stream's sequence gave out. A wrong position is replaced by the writer's
    position in ``known``, or by the lowest position that is not wrong.
    """
    wrong = [writer for writer, at in stored.items() if at.position > given_out]
    if not wrong:
        return stored
    lowest = min((at.position for writer, at in stored.items() if writer not in wrong), default=1)
    held = dict(stored)
    for writer in wrong:
        at = stored[writer]
        before = known[writer].position if writer in known else lowest
        held[writer] = replace(at, position=min(before, given_out))
        if _logged.get((at.stream, writer)) != at.position:
            _logged[at.stream, writer] = at.position
            log.error(
                "stream.position_above_sequence",
                stream=at.stream, writer=writer, position=at.position, sequence=given_out,
            )  # fmt: skip
    return held
