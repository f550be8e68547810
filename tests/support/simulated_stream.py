"""One stream in memory: what PostgreSQL promises of it, lookers that store positions, and readers, for properties.

The rules under test are the real ones: what a look means (``Seen``), what is stored (``PositionStore``), what a reader in the
database takes for the present (``_raised``), the linear position, and tokens. Around them is only what PostgreSQL promises, in
steps as small as it has them: another transaction may go on between any two. Faults can be switched on, to see that the checks
notice them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from streams.core.positions import ACTIVE, RETIRED, linear_position, position_of, positions_to_show
from streams.core.tokens import VectorToken
from streams.holds.installed_sql import ANY_WRITER, class_of
from streams.holds.look import Seen
from streams.reading import position_store
from streams.reading.position_store import PositionStore
from streams.reading.possible_positions import _raised
from streams.reading.rows import StoredPosition
from streams.replication.protocol.ordering import FollowedRow, View
from streams.replication.protocol.range_math import due_rows, next_range, target_of

Pause = Callable[[], None]
STREAM = "simulated"
NAMES = ("north", "south", "east")
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Fault(StrEnum):
    """What can be broken on purpose."""

    NONE = "none"
    BOUND_TOO_HIGH = "a bound that is one too high"
    FLAG = "a mark that a lock is held, instead of its bound"
    RELEASED_FIRST = "locks fall before rows are visible"
    LOCKS_FIRST = "locks are read before what was given out"
    ONE_SNAPSHOT = "rows are read in the step of the look"
    WITHOUT_PREPARED = "a look that passes over locks without a process"
    UNKNOWN_PASSED = "stored positions that do not wait for writers without a row"
    WRITER_LEFT_OUT = "a writer that gets no row"
    RETIRED_BEHIND = "a writer is retired that another is ahead of"
    RETIRED_MEANWHILE = "positions of a look that knew a writer before it was retired are stored"


# --- transactions -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Level:
    """A transaction, or a savepoint of it: what falls when it is rolled back."""

    bounds: dict[int, int] = field(default_factory=dict)
    """Class -> bound that it remembers. The lock of each lasts as long."""
    rows: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Transaction:
    """An open transaction of a client."""

    writer: str
    """Empty if the session has named none."""
    signs: str
    """The writer of its rows. Whoever named one signs with it."""
    preset: int | None
    """A bound that somebody SET for the whole session."""
    levels: list[Level] = field(default_factory=lambda: [Level()])
    is_busy: bool = False
    """Whether it is in the middle of an INSERT or a COMMIT."""
    is_prepared: bool = False
    is_visible: bool = False

    @property
    def writer_class(self) -> int:
        return class_of(self.writer) if self.writer else ANY_WRITER

    def ids(self) -> list[int]:
        return [number for level in self.levels for number in level.rows]

    def remembered(self) -> int | None:
        """The bound that the hold finds in the session's setting."""
        found = [level.bounds[self.writer_class] for level in self.levels if self.writer_class in level.bounds]
        return found[-1] if found else self.preset


class Database:
    """The table, the sequence, the locks and the stored positions."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.given = 1
        self.rows: dict[int, str] = {}
        """ID -> writer, of visible rows."""
        self.transactions: list[Transaction] = []
        self.stored: dict[str, StoredPosition] = {}

    # --- writing --------------------------------------------------------------------------------------------------

    def insert(self, one: Transaction, count: int, pause: Pause) -> None:
        """Read what was given out, take the lock and remember the bound, take the IDs. ``pause`` lets others go on."""
        one.is_busy = True
        held = one.remembered()
        bound = self.given + (self.fault is Fault.BOUND_TOO_HIGH) if held is None else min(self.given, held)
        pause()
        if self.fault is not Fault.FLAG or held is None:
            one.levels[-1].bounds[one.writer_class] = bound
        pause()
        one.levels[-1].rows += range(self.given + 1, self.given + count + 1)
        self.given += count
        one.is_busy = False

    # --- ends -----------------------------------------------------------------------------------------------------

    def roll_back_to(self, one: Transaction) -> None:
        """To the last savepoint: its rows are dead, its locks and what it remembers are gone."""
        one.levels.pop()

    def release(self, one: Transaction) -> None:
        """The last savepoint becomes part of what is around it."""
        last = one.levels.pop()
        one.levels[-1].bounds |= last.bounds
        one.levels[-1].rows += last.rows

    def roll_back(self, one: Transaction) -> None:
        """ROLLBACK, the death of the client, or ROLLBACK PREPARED. Dead rows are no subject of an order."""
        self.transactions.remove(one)

    def commit(self, one: Transaction, pause: Pause) -> None:
        """Its rows become visible, then its locks fall."""
        one.is_busy = True
        if self.fault is Fault.RELEASED_FIRST:
            for level in one.levels:
                level.bounds.clear()
            pause()
        self.rows |= dict.fromkeys(one.ids(), one.signs)
        one.is_visible = True
        pause()
        self.transactions.remove(one)

    # --- what a look reads ----------------------------------------------------------------------------------------

    def locks(self) -> dict[int, int]:
        """The lowest bound of each class."""
        found: dict[int, int] = {}
        for one in self.transactions:
            if self.fault is not Fault.WITHOUT_PREPARED or not one.is_prepared:
                for level in one.levels:
                    for writer_class, bound in level.bounds.items():
                        found[writer_class] = min(bound, found.get(writer_class, bound))
        return found

    def look(self, pause: Pause) -> Seen:
        """What was given out, and then the locks. ``pause`` lets others go on."""
        if self.fault is Fault.LOCKS_FIRST:
            found = self.locks()
            pause()
            given = self.given
        else:
            given = self.given
            pause()
            found = self.locks()
        return Seen(given, min([given, *found.values()]), found)

    # --- stored positions -----------------------------------------------------------------------------------------

    def enter(self, writer: str, position: int) -> bool:
        """A row of a new writer, or of one that was retired. It is never lowered."""
        before = self.stored.get(writer)
        if before is not None and before.state == ACTIVE:
            return False
        position = max(position, before.position if before else 0)
        self.stored[writer] = StoredPosition(STREAM, writer, position, ACTIVE, _NOW, _NOW, None, None)
        return True

    def retire(self, writer: str) -> None:
        """As a store does for a writer without a fact for long, in one transaction: no other position is ahead of its own."""
        row = self.stored[writer]
        if self.fault is Fault.RETIRED_BEHIND or row.position >= max(one.position for one in self.stored.values()):
            self.stored[writer] = replace(row, state=RETIRED)


# --- lookers ------------------------------------------------------------------------------------------------------


class Store(PositionStore):
    """The real store, on the table in memory. It is its own cursor."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.remembers_rows = True
        self._database = database
        self._pause: Pause = lambda: None

    def run(self, pause: Pause) -> None:
        """Look, and store what rose."""
        self._pause = pause
        self.store(self, 0.0, everything=False)

    def execute(self, sql: str, values: Any = None) -> None:
        """The only statement that is not one of the methods below."""
        assert sql == position_store._ROWS, sql
        self._pause()

    def fetchall(self) -> list[Any]:
        rows = [(STREAM, "1", writer, row.position, row.state) for writer, row in self._database.stored.items()]
        return rows or [(STREAM, "1", None, None, None)]

    def _see(self, cursor: Any, now: float) -> dict[str, Seen]:
        seen = self._database.look(self._pause)
        return (
            {STREAM: _Uncapped(seen.given, seen.position, seen.open)}
            if self._is(Fault.UNKNOWN_PASSED)
            else {STREAM: seen}
        )

    def _read_tables(self, cursor: Any, streams: Any) -> None:
        self._tables[STREAM], self._signs[STREAM], self._sequences[STREAM] = [], 1, 1

    def _last_facts(
        self, cursor: Any, stream: str, low: int, rows: Mapping[str, Any], positions: Mapping[str, int], others: int
    ) -> dict[str, tuple[int, int]]:
        self._pause()
        found: dict[str, tuple[int, int]] = {}
        for number, writer in self._database.rows.items():
            if low < number <= positions.get(writer, others):
                before = rows[writer].position if writer in rows else 0
                last, facts = found.get(writer, (0, 0))
                found[writer] = max(last, number), facts + (number > before)
        return found

    def _write(self, cursor: Any, rises: Any) -> Counter[str]:
        self._pause()
        stored, written = self._database.stored, 0
        was_retired = any(stored[writer].state == RETIRED for _, writer in rises.held)
        if was_retired and not self._is(Fault.RETIRED_MEANWHILE):
            return Counter()
        for _, writer, position, *_ in rises.raised:
            if position >= stored[writer].position and stored[writer].state == ACTIVE:
                stored[writer] = replace(stored[writer], position=position)
                written += 1
        for _, writer, position, *_ in rises.entered:
            if not self._is(Fault.WRITER_LEFT_OUT) or writer != NAMES[-1]:
                written += self._database.enter(writer, position)
        return Counter({STREAM: written}) if written else Counter()

    def _is(self, fault: Fault) -> bool:
        return self._database.fault is fault


class _Uncapped(Seen):
    """A look that takes no notice of writers that the caller does not know."""

    def positions_of(self, writers: Iterable[str]) -> dict[str, int]:
        return {writer: self.position_of(writer) for writer in writers}


# --- readers ------------------------------------------------------------------------------------------------------


class Reader:
    """What a reader has read, in order, and how far it is."""

    is_linear = False

    def __init__(self, database: Database) -> None:
        self.database = database
        self.facts: list[tuple[int, str]] = []

    def read(self, pause: Pause) -> None:
        """Find out how far facts are complete, then read them."""
        raise NotImplementedError

    def position_of(self, writer: str) -> int:
        """Up to where it has read the facts of this writer."""
        raise NotImplementedError

    def check(self) -> None:
        """All facts up to its position, once, in order."""
        rows = self.database.rows
        expected = sorted((n, w) for n, w in rows.items() if n <= self.position_of(w))
        assert sorted(self.facts) == expected, f"{self} has read {self.facts}, and complete is {expected}"
        for order in [self.facts] if self.is_linear else [[f for f in self.facts if f[1] == name] for name in NAMES]:
            assert order == sorted(order), f"{self}: out of order: {order}"
        for one in self.database.transactions:
            for number in one.ids() if not one.is_visible else []:
                assert number > self.position_of(one.signs), f"{self} has passed {number} of {one.signs}, which is open"


class Named(Reader):
    """A reader in the database: it looks, and reads by tokens (``streams.follow.table_source``)."""

    def __init__(self, database: Database, view: View) -> None:
        super().__init__(database)
        self._view, self.is_linear = view, view is View.LINEAR
        self._cursor = VectorToken(0)

    def read(self, pause: Pause) -> None:
        snapshot = dict(self.database.rows)
        stored = dict(self.database.stored)  # of the statement's snapshot
        pause()
        stored = _raised(stored, self.database.look(pause))
        linear = linear_position(stored.values())
        target = target_of(self._view, linear, positions_to_show(stored, linear))
        pause()
        if (wanted := next_range(self._cursor, target)) is None:
            return
        there = snapshot if self.database.fault is Fault.ONE_SNAPSHOT else self.database.rows
        rows = [
            FollowedRow(STREAM, writer, number, None) for number, writer in sorted(there.items())
            if wanted.after < number <= wanted.upto and (wanted.writers is None or writer in wanted.writers)
        ]  # fmt: skip
        self.facts += [(row.token, row.instance) for row in due_rows(rows, self._cursor, target)]
        self._cursor = self._cursor.after_partial_read(target, wanted.upto)

    def position_of(self, writer: str) -> int:
        return self._cursor.position_of(writer)

    def __str__(self) -> str:
        return f"named reader, {self._view.value}, at {self._cursor}"


class Looking(Reader):
    """A reader in the database that knows all writers by itself, such as the torture's."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._at = dict.fromkeys(NAMES, 0)

    def read(self, pause: Pause) -> None:
        snapshot = dict(self.database.rows)
        seen = self.database.look(pause)
        pause()
        there = snapshot if self.database.fault is Fault.ONE_SNAPSHOT else self.database.rows
        for writer, after in self._at.items():
            upto = max(after, seen.position_of(writer))
            self.facts += sorted((n, w) for n, w in there.items() if w == writer and after < n <= upto)
            self._at[writer] = upto

    def position_of(self, writer: str) -> int:
        return self._at[writer]

    def __str__(self) -> str:
        return f"looking reader at {self._at}"


class Outside(Reader):
    """A reader that is told stored positions: the linear one, or that of each writer."""

    def __init__(self, database: Database, *, is_linear: bool) -> None:
        super().__init__(database)
        self.is_linear = is_linear
        self._linear = 0
        self._have: dict[str, int] = {}

    def read(self, pause: Pause) -> None:
        stored = dict(self.database.stored)
        pause()
        linear = linear_position(stored.values(), 0)
        if self.is_linear:
            self.facts += sorted((n, w) for n, w in self.database.rows.items() if self._linear < n <= linear)
            self._linear = max(linear, self._linear)
            return
        have = dict(self._have)
        for writer, position in positions_to_show(stored, linear).items():
            after = position_of(have, writer)
            self.facts += sorted((n, w) for n, w in self.database.rows.items() if w == writer and after < n <= position)
            self._have[writer] = max(after, position)

    def position_of(self, writer: str) -> int:
        return self._linear if self.is_linear else position_of(self._have, writer)

    def __str__(self) -> str:
        return f"reader outside at {self._linear if self.is_linear else self._have}"


def readers(database: Database) -> list[Reader]:
    """One of each kind."""
    return [
        Named(database, View.LINEAR), Named(database, View.WRITER), Looking(database),
        Outside(database, is_linear=True), Outside(database, is_linear=False),
    ]  # fmt: skip
