"""What an event and a fact cost, in bytes and in CPU, at several sizes: figures and picture of ``docs/explanation/scale.md``.

Histories of each size are imported, each into an empty database; then pages and states of these events are read, as many facts
are stored, and read. What an event costs is what the largest import took more than the one before, for each event more: Spark's
start is in both. An extrapolation is only as good as the growth is straight, so every figure stands beside its growth: the cost
of one event more to the average at the smallest size. A read should not grow at all: its growth is from the smallest size to the
largest.

``--sizes`` names the sizes, the smallest first; usual are 100,000, 1,000,000 and 5,000,000, which take some 40 GB of disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from django.db import connection

from script.benchmarks.histories import make_history, sizes_of_rooms
from script.benchmarks.import_ import once
from script.benchmarks.report import Report, answer_of
from script.benchmarks.sampling import Sampling
from script.benchmarks.sizes import sizes

SIZES = sizes("100000,1000000,5000000")
AT = 1_000_000_000
CONNECTIONS = "connections at their most"
READ = "beside so many: "
"""Figures of reads and appends begin so."""
MOST_GROWTH = 1.25
_SAMPLE_SECONDS = 0.3

_SIZES = """
SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class
WHERE relkind = 'r' AND (relname LIKE 'events_%%' OR relname LIKE 'state_%%') AND pg_table_size(oid) > 100000
ORDER BY pg_total_relation_size(oid) DESC
"""
_NOW = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"


def fetch(sql: str) -> list[tuple[int, ...]]:
    """All rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, ())
        return cursor.fetchall()


class Watch(Sampling):
    """The most connections while the block runs."""

    connections = 0

    def sample(self) -> None:
        """Keeps the highest."""
        ((count,),) = fetch(_NOW)
        self.connections = max(self.connections, count)

    def ended(self) -> None:
        """The thread's own connection."""
        connection.close()


def measured(events: int) -> dict[str, float]:
    """Import so many events; each figure by its name, those of bytes and microseconds for one event."""
    with tempfile.TemporaryDirectory() as folder:
        files = make_history(Path(folder), sizes_of_rooms(events, max(events // 500, 2), events // 5))
        read = sum(path.stat().st_size for path in files)
        ((wal,),) = fetch(_WAL)
        with Watch(_SAMPLE_SECONDS) as watch:
            answer = once(files)
        ((wal_after,),) = fetch(_WAL)
    connection.close()
    beside = answer_of("-m", "script.benchmarks.scale_reads", str(events))
    figures = {"input, bytes": read / events}
    rows = indexes = 0
    for name, table, index in fetch(_SIZES):
        figures[f"{name}, bytes"], figures[f"{name} indexes, bytes"] = table / events, index / events
        rows, indexes = rows + table, indexes + index
    spent = {f"CPU of {who}, us": answer["stages"]["all"][who] / events * 1e6 for who in _WHO}
    return {
        **figures,
        "all tables, bytes": rows / events,
        "all indexes, bytes": indexes / events,
        "WAL, bytes": (wal_after - wal) / events,
        **spent,
        "CPU, us": sum(spent.values()),
        "wall on two cores, us": answer["stages"]["all"]["wall"] / events * 1e6,
        CONNECTIONS: watch.connections,
        **{f"{READ}{name}": figure for name, figure in beside.items()},
    }


_WHO = ("driver", "jvm", "workers", "postgres")


def main() -> None:
    """Figure beside figure."""
    report = Report("scale", "what an event costs, and what a read beside so many")
    found = {size: measured(size) for size in SIZES}
    for name, figure in found[SIZES[-1]].items():
        each = {size: found[size][name] for size in SIZES if name in found[size]}
        more = figure if name.startswith(READ) or name == CONNECTIONS else _of_one_more(each)
        growth = more / each[SIZES[0]] if each.get(SIZES[0]) else 1.0
        told = {} if name.startswith(READ) else {"for_an_event": more, "at_10^9": _at_scale(name)(more)}
        sized = {f"at {size:,}": value for size, value in each.items()}
        well = "yes" if growth <= MOST_GROWTH else "NO"
        report.add(figure=name, **sized, growth=growth, limit=MOST_GROWTH, well=well, **told)
    report.finish()


def _of_one_more(each: Mapping[int, float]) -> float:
    """What one event more takes, from the averages at the two largest sizes."""
    *_, (fewer, before), (events, after) = [(0, 0.0), *each.items()]
    return (after * events - before * fewer) / (events - fewer)


def _at_scale(name: str) -> Callable[[float], str]:
    """What the figure becomes at 10^9 events, in a unit that people use."""
    if name.endswith("bytes"):
        return lambda figure: f"{figure * AT / 1e12:,.2f} TB"
    if name.endswith("us"):
        return lambda figure: f"{figure * AT / 1e6 / 3600:,.0f} h"
    return lambda figure: f"{figure:.0f}"
