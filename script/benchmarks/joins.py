"""CPU of a join that comes alone, by the members of the room.

CPU is that of this process and of all processes of the database server. ``REPLSITE_BENCH_MEMBERS`` is the size of the
largest room.
"""

from __future__ import annotations

import statistics

from script.benchmarks.forks import MOST_MEMBERS, ForkingRoom, filled
from script.benchmarks.persist import cost_of, stored
from script.benchmarks.report import Report
from streams.writing.name import use_instance

ROUNDS, JOINS = 3, 20
LIMIT_MS = 3.0


def join(report: Report, room: ForkingRoom, members: int) -> None:
    """Adds the row of a room with so many members."""
    costs = [cost_of(stored([[one] for one in room.joins(JOINS)]), JOINS) for _ in range(ROUNDS)]
    cpu = statistics.median(cost.cpu for cost in costs)
    report.add(
        members=members,
        application=statistics.median(cost.application for cost in costs),
        server=statistics.median(cost.server for cost in costs),
        cpu=cpu,
        limit=LIMIT_MS,
        rows=statistics.median(cost.rows for cost in costs),
        ok="yes" if cpu <= LIMIT_MS else "NO",
    )


def main() -> None:
    """Joins rooms of growing size."""
    use_instance("bench")
    columns = ["members", "application", "server", "cpu", "limit", "rows", "ok"]
    report = Report("joins", "milliseconds of CPU and rows of a join", columns)
    for members in (MOST_MEMBERS // 100, MOST_MEMBERS // 10, MOST_MEMBERS):
        join(report, filled(members), members)
    report.finish()
