"""Checks that the sequences of streams are as they must be, and ahead of all IDs and stored positions. Repairs them.

Used by ``manage.py check_streams`` and ``resync positions``. The functions need a cursor of a connection that bypasses
connection poolers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import connections

from streams import registry
from streams.conf import stream_settings
from streams.core.bound import BoundStream
from streams.core.declaration import StreamDeclaration
from streams.core.queries import maxima_sql
from streams.core.sequences import FoundSequence, read_sequences
from streams.db import driver
from streams.db.advice import about_missing_relation
from streams.db.sequences import hold, move_forward
from streams.errors import SequenceUnfit, StreamError
from streams.holds.constraint import StreamHolds
from streams.holds.weaknesses import Weakness, probe, weaknesses
from streams.reading.rows import stored_positions
from streams.stream_object import Stream
from streams.writing.key_columns import FIX, loose_keys

#: Kinds of weaknesses that ``inspect_streams`` finds, too.
_OF_SEQUENCES = frozenset({"cache", "increment", "cycle", "unlogged"})
#: A repair waits this long for a table.
_LOCK_SECONDS = 10.0
#: The streams of the program that no table's triggers hold.
_UNHELD = (
    "SELECT name FROM unnest(%s::text[]) AS name WHERE NOT EXISTS (SELECT FROM streams_held h WHERE h.stream = name)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the check for one stream.

    ``sequence`` is the sequence's value, or None if it cannot be read, ``highest_in_tables`` the highest ID in the
    tables, and ``highest_stored`` the highest stored position. ``verdict`` is ``ok``, or says which properties of the
    sequence are wrong, and which of the other two numbers is above the sequence's value. ``fix`` describes how to repair
    the stream. It is empty if ``verdict`` is ``ok``.
    """

    stream: str
    sequence: int | None
    highest_in_tables: int
    highest_stored: int
    verdict: str
    fix: str
    is_mendable: bool = True
    """False if ``repair`` cannot mend it."""

    @property
    def well(self) -> bool:
        """Returns true if the sequence is as it must be, and no ID and no stored position is above its value."""
        return self.verdict == "ok"

    @property
    def wanted_sequence(self) -> int:
        """Returns the least value that the sequence must have: the greatest of the finding's three numbers.

        At least the position of the empty stream, above which the first ID lies.
        """
        empty = registry.get(self.stream).declaration.empty_position
        return max(self.sequence or 0, self.highest_in_tables, self.highest_stored, empty)


def inspect_streams(cursor: Any) -> list[Finding]:
    return [finding for finding, _ in _inspect(cursor, registry.all_streams())]


def inspect_holds(cursor: Any, other: Any) -> list[Weakness]:
    """Returns what lets facts go around the holds of all streams, or a stranger delay them. Empty if nothing does.

    ``other`` is a cursor of a second connection. Both must be direct, and outside of a transaction.
    """
    cursor.execute(_UNHELD, [[stream.name for stream in registry.all_streams()]])
    unheld = [
        Weakness(
            name, "nothing holds its appends, so readers can miss facts", "Run: manage.py makemigrations, then migrate"
        )
        for (name,) in cursor.fetchall()
    ]
    found = [w for w in weaknesses(cursor) if w.kind not in _OF_SEQUENCES]
    found += [Weakness(name, problem, FIX, loses=False) for name, problem in loose_keys(cursor, registry.all_streams())]
    return [
        *(_with_statement(w) if w.table or w in unheld else w for w in unheld + found),
        *probe(cursor, other),
    ]


def _with_statement(found: Weakness) -> Weakness:
    """Returns the weakness with the statement that holds its table. For a partition: all tables of the stream."""
    statements = {
        model._meta.db_table: holds.hold_sql(model, connections[stream_settings().database].schema_editor())
        for model in registry.get(found.stream).models
        for holds in model._meta.constraints
        if isinstance(holds, StreamHolds) and holds.stream == found.stream
    }
    wanted = [statements[found.table]] if found.table in statements else list(statements.values())
    if not wanted:
        return found
    statement = "; ".join(wanted)
    before = "" if found.table else f"{found.fix}. If nothing is to migrate: "
    return replace(
        found, fix=f"{before}check_streams --repair as the owner of the tables, or: {statement}", statement=statement
    )


def repair_holds(cursor: Any, other: Any) -> Iterator[tuple[Weakness, str]]:
    """Installs triggers that are missing. Yields (weakness, what was done). The cursors are those of ``inspect_holds``."""
    for found in inspect_holds(cursor, other):
        if found.statement:
            try:
                cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS:g}s'; {found.statement}")
            except driver.DatabaseError as error:  # the other tables can be repaired all the same
                yield found, f"not mended: {driver.explain(error)}"
            else:
                yield found, "mended"


def highest_in_tables(cursor: Any, declarations: Collection[StreamDeclaration]) -> dict[str, int]:
    """Returns ``{stream: BoundStream.table_maximum}`` in one query. Streams of one sequence must be given together."""
    if not declarations:
        return {}
    cursor.execute(maxima_sql(declarations))
    highest: dict[str, int] = {}
    for d, token in zip(declarations, cursor.fetchone(), strict=True):
        highest[d.sequence] = max(token, highest.get(d.sequence, 0))
    return {d.name: highest[d.sequence] for d in declarations}


def _inspect(cursor: Any, streams: Sequence[BoundStream]) -> list[tuple[Finding, FoundSequence]]:
    declarations = [stream.declaration for stream in streams]
    names = [stream.name for stream in streams]
    before = read_sequences(cursor, declarations)
    stored = stored_positions(cursor, names)
    in_tables = highest_in_tables(cursor, [d for d in declarations if not before[d.name].missing_tables])
    # The sequences are read last. Otherwise: the check reads 5 from the sequence, a live writer takes 6 and stores
    # position 6, and the check reads this position. The stored position then seems to be above the sequence.
    found = read_sequences(cursor, declarations)
    highest = {name: max((at.position for at in stored.get(name, {}).values()), default=0) for name in names}
    return [(_finding(found[name], in_tables.get(name, 0), highest[name]), found[name]) for name in names]


def _finding(found: FoundSequence, in_tables: int, stored: int) -> Finding:
    behind = found.behind(in_tables, stored)
    wrong = [fault.text for fault in found.faults] + ([behind] if behind else [])
    if not wrong:
        return Finding(found.stream, found.last_value, in_tables, stored, "ok", "")
    finding = Finding(found.stream, found.last_value, in_tables, stored, f"sequence {'; '.join(wrong)}", "")
    fix = "; ".join(_fixes(found, finding if behind else None))
    return replace(finding, fix=fix, is_mendable=found.is_mendable)


def _fixes(found: FoundSequence, behind: Finding | None) -> Iterator[str]:
    is_lost = found.persistence is None and not found.now_called
    for name in found.missing_tables or ([found.sequence] if is_lost else []):
        yield about_missing_relation(f'relation "{name}" does not exist')
    if found.fix and not is_lost and not found.missing_tables:
        yield found.fix
    if behind is not None:
        yield f"move the sequence {found.sequence} to {behind.wanted_sequence}: check_streams --repair"


def repair(cursor: Any, stream: Stream) -> int:
    """Mends the properties of the stream's sequence, and raises its value at least to the highest ID and stored position.

    Returns the new value. Writers may run meanwhile, and no row is removed. Raises ``SequenceBusy`` if the sequence has
    to move far or to be altered, and open transactions prevent it. Raises ``SequenceUnfit`` if this role, or a statement
    about the sequence, cannot mend a property.
    """
    together = [stream, *stream.sharing]
    with driver.in_transaction(cursor):
        finding, found = _inspect(cursor, together)[0]
        if not found.is_mendable:
            raise SequenceUnfit(f"Stream {stream.name}: {found.sentence}")
        if found.now_called:
            hold(cursor, found.now_called)
            for statement in found.mending():
                cursor.execute(statement)
            finding, found = _inspect(cursor, together)[0]
        if not any(fault.loses_facts for fault in found.faults):
            move_forward(cursor, found.sequence, finding.wanted_sequence)  # for which nobody has to own the sequence
        if found.faults:
            hold(cursor, found.sequence)
            finding, found = _inspect(cursor, together)[0]  # nobody takes an ID any more
            wanted = finding.wanted_sequence
            is_behind = found.last_value is None or found.last_value < wanted
            for statement in found.mending(wanted + 1 if is_behind else None):
                cursor.execute(statement)
        return stream.sequence_value(cursor)


def repair_streams(cursor: Any) -> Iterator[tuple[Finding, str]]:
    """Repairs every stream whose finding is not ``ok``. Yields (finding, what was done) for each of these streams."""
    for finding in inspect_streams(cursor):
        if not finding.well:
            change = "moved to" if finding.wanted_sequence > (finding.sequence or 0) else "mended, is at"
            try:
                done = f"sequence {change} {repair(cursor, registry.get(finding.stream))}"
            except StreamError as error:  # the other streams can be repaired all the same
                done = f"not mended: {error}"
            yield finding, done
