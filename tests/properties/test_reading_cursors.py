"""A reader's log equals the table, whatever the writers do, the view, the chunks, and where it was restarted.

A simulated stream: writers reserve and complete in any order; the reader sees the positions of some moment and rows up to
a limit. Uses the same pure steps as ``streams.follow.table_source``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from streams.core.tokens import VectorToken
from streams.replication.protocol.ordering import FollowedRow, View
from streams.replication.protocol.range_math import due_rows, next_range, target_of

WRITERS = ("a", "b", "c")


@dataclass
class Writing:
    """IDs given out, and which are complete; a writer's position is below its first pending ID."""

    owners: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)

    def reserve(self, writer: str, size: int) -> None:
        token = len(self.owners) + 1
        self.owners[token], self.sizes[token] = writer, size

    def complete(self, place: int) -> None:
        pending = sorted(set(self.owners) - self.done)
        if pending:
            self.done.add(pending[place % len(pending)])

    def positions(self) -> dict[str, int]:
        head = len(self.owners)
        found = {}
        for writer in WRITERS:
            pending = [token for token, owner in self.owners.items() if owner == writer and token not in self.done]
            found[writer] = min(pending) - 1 if pending else head
        return found

    def target(self, view: View) -> VectorToken:
        positions = self.positions()
        return target_of(view, min(positions.values()), positions)

    def rows(self, after: int, upto: int, writers: tuple[str, ...] | None, limit: int) -> tuple[list[FollowedRow], int]:
        """As ``existing_rows``: committed rows only, facts whole, and how far that got."""
        rows: list[FollowedRow] = []
        for token in range(after + 1, upto + 1):
            if token not in self.done or (writers is not None and self.owners[token] not in writers):
                continue
            if len(rows) >= limit:
                return rows, token - 1
            rows += [FollowedRow("s", self.owners[token], token, n) for n in range(self.sizes[token])]
        return rows, upto


def step(writing: Writing, view: View, cursor: VectorToken, limit: int) -> tuple[list[FollowedRow], VectorToken]:
    """One chunk of a reader, as it is stored with its cursor."""
    target = writing.target(view)
    reading = next_range(cursor, target)
    if reading is None:
        return [], cursor
    rows, reached = writing.rows(reading.after, reading.upto, reading.writers, limit)
    return list(due_rows(rows, cursor, target)), cursor.after_partial_read(target, reached)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.sampled_from(WRITERS), st.integers(0, 3)),
        st.tuples(st.just("complete"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 4), st.integers(0, 3)),
    ),
    max_size=60,
)


def log_of(given_moves, view: View) -> tuple[Writing, list[FollowedRow]]:
    writing, cursor, log = Writing(), VectorToken(0), []
    for kind, first, second in given_moves:
        if kind == "reserve":
            writing.reserve(first, second)
        elif kind == "complete":
            writing.complete(first)
        else:
            for _ in range(second):
                rows, cursor = step(writing, view, cursor, first)
                cursor = VectorToken(cursor.base, dict(cursor.entries))  # stored and read again
                log += rows
    writing.done |= set(writing.owners)
    for _ in range(10_000):
        rows, after = step(writing, view, cursor, 3)
        log += rows
        if after == cursor:
            break
        cursor = after
    return writing, log


@given(moves)
def test_the_log_of_either_view_is_the_table_with_each_row_once(given_moves):
    for view in View:
        writing, log = log_of(given_moves, view)
        everything, _ = writing.rows(0, len(writing.owners), None, 10**9)
        assert sorted((row.token, row.row) for row in log) == [(row.token, row.row) for row in everything]


@given(moves)
def test_each_writers_facts_come_in_order_and_whole(given_moves):
    for view in View:
        _, log = log_of(given_moves, view)
        for writer in WRITERS:
            own = [(row.token, row.row) for row in log if row.instance == writer]
            assert own == sorted(own)
        places: dict[int, list[int]] = {}
        for place, row in enumerate(log):
            places.setdefault(row.token, []).append(place)
        assert all(found == list(range(found[0], found[0] + len(found))) for found in places.values())


@given(moves)
def test_the_linear_view_is_in_order_over_all_writers(given_moves):
    _, log = log_of(given_moves, View.LINEAR)
    tokens = [row.token for row in log]
    assert tokens == sorted(tokens)
