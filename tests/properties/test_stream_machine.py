"""Several writers and readers, in any order of events, against the true state of every ID.

No position may ever cover an ID that can still become a row, none may go down, a reader sees every fact exactly once,
and once everything has ended and been heard every linear position is at the head. Planted faults must be noticed.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streams.core import tracker
from streams.core.positions import linear_position
from tests.support.effort import examples
from tests.support.simulated_site import Fault, Site, Truth, Writer

NAMES = ["north", "south", "east"]
PICK = st.integers(min_value=0, max_value=20)


class StreamMachine(RuleBasedStateMachine):
    """Each rule is one thing that can happen; ``pick`` chooses among what is there."""

    fault = Fault.NONE

    def __init__(self) -> None:
        super().__init__()
        self.site = Site(self.fault)
        self.lowest: dict[tuple[int, str], int] = {}

    @initialize()
    def someone_is_there(self) -> None:
        self.site.add_reader()
        self.site.join("north")

    def writer(self, pick: int) -> Writer:
        return list(self.site.writers.values())[pick % len(self.site.writers)]

    # --- writers --------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def join_or_restart(self, name: str) -> None:
        if self.site.may_join(name):
            self.site.join(name)

    @precondition(lambda self: self.site.fault is Fault.LATE_ENTRY and self.site.writers)
    @rule(pick=PICK)
    def enter_late(self, pick: int) -> None:
        self.site.enter(self.writer(pick))

    @precondition(lambda self: self.site.writers)
    @rule(pick=PICK)
    def crash(self, pick: int) -> None:
        self.site.crash(self.writer(pick).name)

    @precondition(lambda self: self.site.writers)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        self.site.leave(self.writer(pick).name)

    @rule(name=st.sampled_from(NAMES))
    def resolve_dead(self, name: str) -> None:
        if name in self.site.database.stored and name not in self.site.writers:
            self.site.resolve(name)

    @precondition(lambda self: self.site.writers)
    @rule(pick=PICK, count=st.integers(1, 3), how=st.sampled_from(["on the way", "at once", "alone"]))
    def begin_fetch(self, pick: int, count: int, how: str) -> None:
        writer = self.writer(pick)
        self.site.begin_fetch(writer, count)
        if how != "on the way":
            self.site.take_ids(writer, writer.fetches[-1])
        if how == "at once":
            self.site.end_fetch(writer, writer.fetches[-1])
        elif how == "alone":
            self.site.commit_alone(writer, writer.fetches[-1], rows=count)

    @precondition(lambda self: any(w.fetches for w in self.site.writers.values()))
    @rule(pick=PICK, outcome=st.sampled_from(["go on", "go on", "go on", "alone", "settle", "settle", "fail"]))
    def go_on_fetching(self, pick: int, outcome: str) -> None:
        writer = next(w for w in self.site.writers.values() if w.fetches)
        under_way = writer.fetches[pick % len(writer.fetches)]
        if under_way.alone is not None and (outcome == "settle" or under_way.alone.ended):
            self.site.settle(writer, under_way)
        elif under_way.ids is not None and (outcome == "alone" or under_way.alone is not None):
            self.site.commit_alone(writer, under_way, rows=pick % 4)
        elif outcome == "fail":
            self.site.fail_fetch(writer, under_way)
        elif under_way.ids is None:
            self.site.take_ids(writer, under_way)
        else:
            self.site.end_fetch(writer, under_way)

    @precondition(lambda self: any(w.transactions for w in self.site.writers.values()))
    @rule(pick=PICK, which=PICK, commit=st.booleans(), rows=st.integers(0, 3))
    def end_transaction(self, pick: int, which: int, commit: bool, rows: int) -> None:
        writer = next(w for w in self.site.writers.values() if w.transactions)
        transaction = writer.transactions[which % len(writer.transactions)]
        if not transaction.ended:
            self.site.end(transaction, commit=commit, rows=rows)

    @precondition(lambda self: any(w.transactions for w in self.site.writers.values()))
    @rule(which=PICK)
    def complete(self, which: int) -> None:
        writer = next(w for w in self.site.writers.values() if w.transactions)
        self.site.complete(writer, writer.transactions[which % len(writer.transactions)])

    @precondition(lambda self: self.site.ghosts)
    @rule(pick=PICK, commit=st.booleans())
    def end_ghost(self, pick: int, commit: bool) -> None:
        self.site.end(self.site.ghosts[pick % len(self.site.ghosts)], commit=commit, rows=3)

    @precondition(lambda self: self.site.writers)
    @rule(pick=PICK)
    def find_head(self, pick: int) -> None:
        self.site.find_head(self.writer(pick))

    @precondition(lambda self: self.site.writers)
    @rule(pick=PICK)
    def announce(self, pick: int) -> None:
        self.site.announce(self.writer(pick))

    @precondition(lambda self: self.site.writers)
    @rule(pick=PICK, count=st.integers(1, 5))
    def hear(self, pick: int, count: int) -> None:
        self.site.hear(self.writer(pick), count)

    # --- readers --------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.site.readers) < 3)
    @rule()
    def new_reader(self) -> None:
        self.site.add_reader()

    @rule(pick=PICK, count=st.integers(1, 5), lose=st.booleans())
    def reader_hears(self, pick: int, count: int, lose: bool) -> None:
        reader = self.site.readers[pick % len(self.site.readers)]
        self.site.reconnect(reader) if lose else self.site.hear(reader, count)

    @rule(pick=PICK)
    def read_rows(self, pick: int) -> None:
        self.site.read(self.site.readers[pick % len(self.site.readers)])

    # --- what must always hold ------------------------------------------------------------------------------------

    def never_lower(self, serial: int, what: str, value: int) -> None:
        key = serial, what
        assert value >= self.lowest.get(key, 0), f"{what} went down to {value}"
        self.lowest[key] = value

    @invariant()
    def no_position_covers_a_pending_id(self) -> None:
        first = min(self.site.pending(), default=10**9)
        for who in [*self.site.readers, *self.site.writers.values()]:
            assert who.tracker.linear < first, (who, first)
            self.never_lower(who.serial, "linear", who.tracker.linear)
            for name in self.site.database.stored:
                position = who.tracker.position_of(name)
                assert position < min(self.site.pending(name), default=10**9), (who, name, position)
                self.never_lower(who.serial, name, position)

    @invariant()
    def stored_positions_hold(self) -> None:
        stored = self.site.stored()
        linear = linear_position(stored.values())
        assert linear < min(self.site.pending(), default=10**9)
        self.never_lower(-1, "linear by the table", linear)
        for name, at in stored.items():
            assert at.position < min(self.site.pending(name), default=10**9), name
            state = self.site.truth.get(at.position, ("", Truth.GONE))[1]
            assert state is not Truth.PENDING, f"{name} is stored at {at.position}, which is pending somewhere"

    @invariant()
    def readers_saw_every_fact_once(self) -> None:
        for reader in self.site.readers:
            assert reader.seen == sorted(n for _, n in self.site.database.rows if n <= reader.cursor)
            for name, (cursor, seen) in reader.of_writers.items():
                assert seen == sorted(n for w, n in self.site.database.rows if w == name and n <= cursor)

    # --- what must come in the end --------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.fault is not Fault.NONE:
            return
        self.end_everything()
        for writer in self.site.writers.values():
            self.site.find_head(writer)
        for _ in range(4):  # everybody hears, who may claim more says so, and that is heard
            for who in [*self.site.readers, *self.site.writers.values()]:
                self.site.hear(who, len(self.site.queue))
            for writer in self.site.writers.values():
                self.site.announce(writer)
        head = linear_position(self.site.stored().values())
        assert head >= max([self.site.head(), *(writer.completed for writer in self.site.writers.values())])
        for reader in self.site.readers:
            self.site.read(reader)
            assert reader.tracker.linear == head, (reader, head)
        for writer in self.site.writers.values():
            assert writer.tracker.linear >= head, (writer, head)
        self.readers_saw_every_fact_once()

    def end_everything(self) -> None:
        for writer in self.site.writers.values():
            for under_way in list(writer.fetches):
                end = self.site.fail_fetch if under_way.alone is None else self.site.settle
                end(writer, under_way)
            for transaction in list(writer.transactions):
                if not transaction.ended:
                    self.site.end(transaction, commit=True, rows=1)
                self.site.complete(writer, transaction)
        for ghost in list(self.site.ghosts):
            self.site.end(ghost, commit=True, rows=1)
        for name in sorted(set(self.site.database.stored) - set(self.site.writers) - self.site.retired):
            self.site.resolve(name)


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
StreamMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=50, **COMMON)
TestStreamMachine = StreamMachine.TestCase


def test_with_little_room_for_complete_ids_every_position_comes_to_the_head(monkeypatch):
    """While a writer is stuck most single IDs are dropped. The announcements that follow take the positions past those."""
    monkeypatch.setattr(tracker, "KNOWN_DONE_LIMIT", 1)
    run_state_machine_as_test(
        StreamMachine, settings=settings(max_examples=examples(60), stateful_step_count=50, **COMMON)
    )


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
def test_the_machine_notices(fault: Fault) -> None:
    faulty = type("Faulty", (StreamMachine,), {"fault": fault})
    effort = settings(
        max_examples=3000, stateful_step_count=40, derandomize=True, report_multiple_bugs=False,
        phases=[Phase.generate], **COMMON,
    )  # fmt: skip
    with pytest.raises(AssertionError):
        run_state_machine_as_test(faulty, settings=effort)
