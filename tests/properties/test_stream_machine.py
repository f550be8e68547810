"""Writers, lookers and readers of one stream, in any order of steps, against the obvious truth.

No reader ever passes a fact that may still come. Each has read all facts up to its position, once, in order. When everything has
ended and was looked at, every reader has every fact. Planted faults must be noticed.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from streams.core.positions import linear_position
from tests.support.effort import examples
from tests.support.simulated_stream import NAMES, Database, Fault, Level, Store, Transaction, readers

#: A move: what happens, to whom of those that are there, and whether it happens in the middle of the move before it, if that has
#: steps.
MOVES = st.lists(
    st.tuples(
        st.sampled_from([
            "insert", "insert", "insert", "commit", "commit", "roll back", "savepoint", "end savepoint", "prepare",
            "look", "look", "new looker", "retire", "read", "read", "read",
            "wait",
        ]),
        st.integers(0, 11),
        st.booleans(),
    ),
    max_size=40,
)  # fmt: skip


class Machine:
    """Runs moves. Transactions go on over several moves, looks and reads have other moves in between."""

    def __init__(self, fault: Fault) -> None:
        self.database = Database(fault)
        self.readers = readers(self.database)
        self._lookers = [Store(self.database), Store(self.database)]
        self._busy: set[int] = set()
        self._moves: deque[tuple[str, int, bool]] = deque()

    def run(self, moves: list[tuple[str, int, bool]]) -> None:
        """All moves, and then everything comes to rest."""
        self._moves.extend(moves)
        while self._moves:
            self._next()
        self._come_to_rest()

    def _pause(self) -> None:
        while self._moves and self._moves[0][2]:
            if self._next() == "wait":
                break

    def _next(self) -> str:
        move, pick, _ = self._moves.popleft()
        getattr(self, f"_{move.replace(' ', '_')}")(pick)
        for reader in self.readers:
            if id(reader) not in self._busy:
                reader.check()
        return move

    def _wait(self, pick: int) -> None:
        """What comes next comes after a further step of the move around it."""

    # --- clients --------------------------------------------------------------------------------------------------

    def _one(self, pick: int) -> Transaction | None:
        open_ = [one for one in self.database.transactions if not one.is_busy]
        return open_[pick % len(open_)] if open_ else None

    def _insert(self, pick: int) -> None:
        """In an open transaction, or in a new one."""
        one = self._one(pick // 3) if pick % 3 else None
        if one is None or one.is_prepared:
            one = self._begin(pick)
        self.database.insert(one, 1 + pick % 2, self._pause)

    def _begin(self, pick: int) -> Transaction:
        signs = NAMES[pick % 3]
        preset = {9: 0, 10: 3, 11: 10**6}.get(pick)
        self.database.transactions.append(Transaction(signs if pick % 4 else "", signs, preset))
        return self.database.transactions[-1]

    def _commit(self, pick: int) -> None:
        """COMMIT, or COMMIT PREPARED."""
        if (one := self._one(pick)) is not None:
            self.database.commit(one, self._pause)

    def _roll_back(self, pick: int) -> None:
        """ROLLBACK, the end of the client, or ROLLBACK PREPARED."""
        if (one := self._one(pick)) is not None:
            self.database.roll_back(one)

    def _savepoint(self, pick: int) -> None:
        one = self._one(pick)
        if one is not None and not one.is_prepared:
            one.levels.append(Level())

    def _end_savepoint(self, pick: int) -> None:
        one = self._one(pick)
        if one is not None and len(one.levels) > 1 and not one.is_prepared:
            (self.database.roll_back_to if pick % 2 else self.database.release)(one)

    def _prepare(self, pick: int) -> None:
        if (one := self._one(pick)) is not None:
            one.is_prepared = True

    # --- lookers and readers --------------------------------------------------------------------------------------

    def _look(self, pick: int) -> None:
        looker = self._lookers[pick % 2]
        if id(looker) not in self._busy:
            self._busy.add(id(looker))
            looker.run(self._pause)
            self._busy.discard(id(looker))

    def _new_looker(self, pick: int) -> None:
        """Its session was lost, or another process looks."""
        if id(self._lookers[pick % 2]) not in self._busy:
            self._lookers[pick % 2] = Store(self.database)

    def _retire(self, pick: int) -> None:
        if NAMES[pick % 3] in self.database.stored:
            self.database.retire(NAMES[pick % 3])

    def _read(self, pick: int) -> None:
        reader = self.readers[pick % len(self.readers)]
        if id(reader) not in self._busy:
            self._busy.add(id(reader))
            reader.read(self._pause)
            self._busy.discard(id(reader))

    # --- the end --------------------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        for one in list(self.database.transactions):
            self.database.commit(one, self._pause)
        for _ in range(2):
            self._look(0)
            for number in range(len(self.readers)):
                self._read(number)
        for reader in self.readers:
            reader.check()
            assert sorted(reader.facts) == sorted(self.database.rows.items()), f"{reader} lacks facts"
        assert linear_position(self.database.stored.values(), 0) >= max(self.database.rows, default=0)


@settings(max_examples=examples(400), suppress_health_check=list(HealthCheck))
@given(MOVES)
def test_each_reader_has_each_fact_once_and_in_order(moves):
    Machine(Fault.NONE).run(moves)


#: South has a row, and an open append. North, who came later, is ahead of it.
BEHIND = [
    ("insert", 1, False), ("commit", 0, False), ("look", 0, False), ("insert", 1, False), ("insert", 6, False),
    ("commit", 1, False),
]  # fmt: skip
READ_ALL = [("read", number, False) for number in range(5)]
#: Moves that chance takes minutes to find.
DIRECTED = {
    Fault.RETIRED_BEHIND: [*BEHIND, ("look", 0, False), ("retire", 1, False), *READ_ALL],
    # South is retired while a looker that knows it as a writer has seen what is open.
    Fault.RETIRED_MEANWHILE: [*BEHIND, ("look", 0, False), *[("wait", 0, True)] * 2, ("retire", 1, True), *READ_ALL],
}


@pytest.mark.parametrize("moves", DIRECTED.values(), ids=DIRECTED)
def test_each_reader_has_each_fact_in_such_a_case(moves):
    Machine(Fault.NONE).run(moves)


@pytest.mark.parametrize("fault", DIRECTED)
def test_the_machine_notices_what_is_rare(fault: Fault) -> None:
    with pytest.raises(AssertionError, match="has passed"):
        Machine(fault).run(DIRECTED[fault])


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE and fault not in DIRECTED])
def test_the_machine_notices(fault: Fault) -> None:
    @settings(
        max_examples=5_000, derandomize=True, database=None, report_multiple_bugs=False, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(MOVES)
    def run(moves: list[tuple[str, int, bool]]) -> None:
        Machine(fault).run(moves)

    with pytest.raises(AssertionError):
        run()
