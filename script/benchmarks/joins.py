"""CPU of a join that comes alone, by the members of the room.

CPU is that of this process and of all processes of the database server. *new process*: nothing of the room is cached, as after a
restart. ``REPLSITE_BENCH_MEMBERS`` is the size of the largest room.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

from events.persist.room_cache import clear_caches
from script.benchmarks.forks import MOST_MEMBERS, ForkingRoom, filled
from script.benchmarks.persist import cost_of, stored
from script.benchmarks.report import Report
from streams.writing.name import use_instance

ROUNDS, JOINS = 3, 20
LIMIT_MS = 3.0


def join(report: Report, room: ForkingRoom, members: int, *, new_process: bool = False) -> None:
    """Adds the row of a room with so many members."""
    costs = []
    for _ in range(ROUNDS):
        joins = [stored([[one]]) for one in room.joins(JOINS)]
        costs.append(cost_of(partial(_each, joins, new_process), JOINS))
    cpu = statistics.median(cost.cpu for cost in costs)
    report.add(
        members=members,
        process="new" if new_process else "",
        application=statistics.median(cost.application for cost in costs),
        server=statistics.median(cost.server for cost in costs),
        cpu=cpu,
        limit=LIMIT_MS,
        rows=statistics.median(cost.rows for cost in costs),
        ok="yes" if cpu <= LIMIT_MS else "NO",
    )


def _each(joins: Sequence[Callable[[], None]], new_process: bool) -> None:
    for store in joins:
        if new_process:
            clear_caches()
        store()


def main() -> None:
    """Joins rooms of growing size."""
    use_instance("bench")
    report = Report("joins", "milliseconds of CPU and rows of a join")
    for members in (MOST_MEMBERS // 100, MOST_MEMBERS // 10, MOST_MEMBERS):
        room = filled(members)
        join(report, room, members)
    join(report, room, members, new_process=True)
    report.finish()
