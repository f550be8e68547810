"""Appends of several writers and looks, in any order: no position covers an ID that may still become a row.

What PostgreSQL promises is modelled: a bound is held before the IDs above it are taken, and until the rows are visible. A look
reads what was given out first, and then the bounds. The rules of positions are the real ones. Planted faults must be noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from streams.holds.installed_sql import class_of
from streams.holds.look import Seen
from tests.support.effort import examples

NAMES = ["", "north", "south", "east"]
PICK = st.integers(min_value=0, max_value=20)


@dataclass
class Append:
    """An open transaction that appends under a name, or under none."""

    writer: str
    bound: int
    ids: list[int] = field(default_factory=list)


class Looks(RuleBasedStateMachine):
    """Each rule is one thing that can happen; ``pick`` chooses among what is open."""

    fault = ""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0
        self.open: list[Append] = []
        self.rows: dict[int, str] = {}
        self.half_look: tuple[int, dict[int, int]] | None = None
        self.known: dict[str, int] = {}
        """Writer -> position, as the looker stores them."""
        self.delivered: dict[str, list[int]] = {}

    @rule(writer=st.sampled_from(NAMES))
    def begin(self, writer: str) -> None:
        self.open.append(Append(writer, self.given + (self.fault == "bound one too high")))

    @precondition(lambda self: self.open)
    @rule(pick=PICK, count=st.integers(1, 3))
    def take(self, pick: int, count: int) -> None:
        self.open[pick % len(self.open)].ids += range(self.given + 1, self.given + count + 1)
        self.given += count

    @precondition(lambda self: self.open)
    @rule(pick=PICK, commits=st.booleans())
    def end(self, pick: int, commits: bool) -> None:
        ended = self.open.pop(pick % len(self.open))
        if commits:
            self.rows |= dict.fromkeys(ended.ids, ended.writer)

    # --- a look in two parts, between which everything else may happen ---

    def bounds(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for one in self.open:
            if one.writer or self.fault != "nameless appends hold nobody":
                number = class_of(one.writer)
                found[number] = min(one.bound, found.get(number, one.bound))
        return found

    @rule()
    def read_given_out(self) -> None:
        self.half_look = self.given, self.bounds()

    @precondition(lambda self: self.half_look is not None)
    @rule()
    def read_bounds_and_rows(self) -> None:
        assert self.half_look is not None
        given, bounds = self.half_look[0], self.bounds()
        if self.fault == "bounds before what was given out":
            given, bounds = self.given, self.half_look[1]
        seen = Seen(given, min([given, *bounds.values()]), bounds)
        self.half_look = None
        others = seen.position_of_others(self.known)
        found = seen.positions_of(self.known)
        # A writer is known from its first row that no open append can come before.
        for number, writer in self.rows.items():
            if writer not in found and number <= others:
                found[writer] = min(seen.position_of(writer), others)
        for writer, position in found.items():
            before = self.known.get(writer, 0)
            self.delivered.setdefault(writer, []).extend(
                sorted(number for number, name in self.rows.items() if name == writer and before < number <= position)
            )
            self.known[writer] = max(before, position)

    # --- what must hold ---

    @invariant()
    def no_position_covers_what_may_still_come(self) -> None:
        for one in self.open:
            for number in one.ids:
                assert number > self.known.get(one.writer, 0), (number, one.writer)
                assert number > min(self.known.values(), default=0), (number, one.writer)

    @invariant()
    def facts_come_once_and_in_order(self) -> None:
        for writer, numbers in self.delivered.items():
            upto = self.known[writer]
            assert numbers == sorted(number for number, name in self.rows.items() if name == writer and number <= upto)

    def teardown(self) -> None:
        self.open.clear()
        for _ in range(2):  # the second look reads on for writers that the first one has learnt
            self.read_given_out()
            self.read_bounds_and_rows()
        assert sorted(number for numbers in self.delivered.values() for number in numbers) == sorted(self.rows)


def run(fault: str, count: int, *phases: Phase) -> None:
    machine = type("Planted", (Looks,), {"fault": fault})
    quiet = settings(
        max_examples=count, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck),
        derandomize=bool(fault) or settings.default.derandomize,  # a plant that other examples miss proves nothing
        phases=phases or tuple(Phase),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=quiet)


def test_positions_are_right_in_any_order_of_events():
    run("", examples(150))


@pytest.mark.parametrize(
    "fault", ["bound one too high", "nameless appends hold nobody", "bounds before what was given out"]
)
def test_planted_faults_are_noticed(fault):
    with pytest.raises(AssertionError):
        run(fault, examples(400), Phase.generate)
