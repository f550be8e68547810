"""CPU of forks of state and their merge, by the members of the room and by the changes on each branch.

Two branches leave the last event of a room, and each sets some entries of the state. They are stored in a batch each, and
a message merges them. So the current state is resolved twice. CPU is that of this process and of all processes of the
database server. *new process*: nothing of the room is cached, as after a restart. The last rows have many branches of one change
each: what one more branch takes while the others are open, and the memory that this process holds more afterwards. Rooms of
versions 1 and 2, whose event IDs are not hashes, have rows of their own. ``REPLSITE_BENCH_MEMBERS`` is the size of the largest
room.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from events.format.parsing import ParsedEvent
from events.persist.room_cache import clear_caches
from script.benchmarks.copied_joins import copy_joins
from script.benchmarks.persist import BEGINNING, BenchRoom, cost_of, stored
from script.benchmarks.report import Report
from streams.writing.name import use_instance

MOST_MEMBERS = int(os.environ.get("REPLSITE_BENCH_MEMBERS") or 100_000)
ROUNDS = 5
ENTRIES = (1, 2, 10, 100)
VERSION = "11"
OF_GIVEN_IDS = ("1", "2")
"""Room versions whose event IDs are no hashes. The first has an algorithm of its own."""
LIMIT_MS, LIMIT_PER_ENTRY_MS = 60, 5
BRANCHES = (10, 100, 1_000)
LAST = 10
"""The number of branches whose cost is measured, after all others."""
LIMIT_BRANCH_MS, LIMIT_PER_BRANCH_MS = 60, 0.5
MOST_MB = 300
_MERGED_AT_ONCE = 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ForkingRoom(BenchRoom):
    """A room whose founder sets entries of the state on branches."""

    def __init__(self, members: int, version: str = VERSION) -> None:
        super().__init__(members, f"!forks-{members}-{version}:localhost", version)
        self._changes = 0

    def branches(self, count: int, entries: int) -> list[list[ParsedEvent]]:
        """Returns branches on top of the last event. Each sets other entries of the state."""
        depth, prevs, found = self._depth, self._prevs, []
        for _ in range(count):
            self._depth, self._prevs = depth, prevs
            found.append([self._change() for _ in range(entries)])
        return found

    def _change(self) -> ParsedEvent:
        self._changes += 1
        founder = self._users[0]
        content = {"number": self._changes}
        needed = ["m.room.create", "m.room.power_levels"]
        parts = {"type": "bench.entry", "state_key": str(self._changes), "content": content}
        return self._next(founder, needed, parts)

    def merge(self, branches: Sequence[Sequence[ParsedEvent]]) -> list[ParsedEvent]:
        """Returns messages that merge the branches. An event may have at most 20 prev events."""
        tips, found = [branch[-1].event_id for branch in branches], []
        while len(tips) > 1:
            self._prevs, tips = tips[:_MERGED_AT_ONCE], tips[_MERGED_AT_ONCE:]
            found += self.messages(1)
            tips.append(found[-1].event_id)
        return found


def filled(members: int, version: str = VERSION) -> ForkingRoom:
    """Returns a room with so many members, stored."""
    room = ForkingRoom(members, version)
    events = room.set_up()
    stored([events[:BEGINNING]])()
    copy_joins(events[BEGINNING:])
    return room


def fork(
    report: Report, room: ForkingRoom, members: int, entries: int, version: str = VERSION, *, new_process: bool = False
) -> None:
    """Adds the row of forks with two branches of so many changes."""
    costs = []
    for _ in range(ROUNDS):
        branches = room.branches(2, entries)
        if new_process:
            clear_caches()
        costs.append(cost_of(stored([*branches, room.merge(branches)]), 1))
    cpu, limit = statistics.median(cost.cpu for cost in costs), LIMIT_MS + LIMIT_PER_ENTRY_MS * 2 * (entries - 1)
    report.add(
        version=version,
        members=members,
        process="new" if new_process else "",
        branches=2,
        entries=entries,
        application=statistics.median(cost.application for cost in costs),
        server=statistics.median(cost.server for cost in costs),
        cpu=cpu,
        limit=limit,
        ok="yes" if cpu <= limit else "NO",
    )


def many(report: Report, room: ForkingRoom, members: int, count: int) -> None:
    """Adds the row of a room with so many branches."""
    before = _resident_mb()
    branches = room.branches(count, 1)
    stored(branches[:-LAST])()
    cost = cost_of(stored(branches[-LAST:]), LAST)
    memory = _resident_mb() - before
    merges = room.merge(branches)
    stored([[merge] for merge in merges])()
    limit = LIMIT_BRANCH_MS + LIMIT_PER_BRANCH_MS * count
    report.add(
        version=VERSION,
        members=members,
        process="",
        branches=count,
        entries=1,
        application=cost.application,
        server=cost.server,
        cpu=cost.cpu,
        limit=limit,
        memory_mb=memory,
        ok="yes" if cost.cpu <= limit and memory <= MOST_MB else "NO",
    )


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 2**20


def main() -> None:
    """Forks in rooms of growing size, and many branches in one."""
    use_instance("bench")
    report = Report("forks", "milliseconds of CPU of a fork and its merge; of one more branch")
    for members in (MOST_MEMBERS // 1_000, MOST_MEMBERS // 100, MOST_MEMBERS // 10):
        fork(report, filled(members), members, 1)
    for version in OF_GIVEN_IDS:
        fork(report, filled(MOST_MEMBERS // 10, version), MOST_MEMBERS // 10, 1, version)
    room = filled(MOST_MEMBERS)
    fork(report, room, MOST_MEMBERS, 1, new_process=True)
    for entries in ENTRIES:
        fork(report, room, MOST_MEMBERS, entries)
    for count in BRANCHES:
        many(report, room, MOST_MEMBERS, count)
    report.finish()
