"""Events per second of a full import, on two cores and on one, and how that grows from a tenth of the events to all.

Each import is a process of its own on an empty database (``import_once``); the histories are made anew (``histories``): 10^6
events in 2,000 rooms, one of which has 200,000. The rate is without the seconds that Spark takes to start, which do not depend
on the events. On one core everybody is bound to the same one: driver, JVM, workers and database server.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connection

from script.benchmarks.histories import make_history, sizes_of_rooms
from script.benchmarks.report import Report, answer_of
from streams.holds.maintenance import session_changing_facts

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 1_000_000)
LEAST_PER_SECOND = 12_000
MOST_TIMES_A_TENTH = 11.0
LEAST_TIMES_ONE_CORE = 1.6
MOST_WORKERS_MB, MOST_JVM_MB = 3 * 1024, 2 * 1024
_STAGES = ("scan", "read", "load")
#: As docs/how-to/run-in-production.md has it. With less, 10^6 events meet a checkpoint, and pages are written whole again.
_WAL_OF_PRODUCTION = "ALTER SYSTEM SET max_wal_size = '8GB'"


def emptied() -> None:
    """Empty the database, so that the next run begins as the one before."""
    with session_changing_facts(connection):
        call_command("flush", interactive=False, verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(_WAL_OF_PRODUCTION)
        cursor.execute("SELECT pg_reload_conf()")
        cursor.execute("CHECKPOINT")
    connection.close()


def once(paths: list[Path], cores: int = 2) -> dict[str, Any]:
    """Import the files into an empty database; what ``import_once`` says."""
    emptied()
    answer = answer_of("-m", "script.benchmarks.import_once", *map(str, paths), "--cores", str(cores))
    if answer["imported"] != answer["read"] or answer["rejected"] or answer["unresolved"]:
        raise RuntimeError(f"not everything was imported: {answer}")
    return answer


def seconds_of(answer: dict[str, Any]) -> float:
    """How long an import took, but for starting Spark."""
    return float(answer["stages"]["all"]["wall"])


def row(name: str, answer: dict[str, Any]) -> dict[str, Any]:
    """What is told of every import."""
    events = answer["read"]
    spent = {who: answer["stages"]["all"][who] for who in ("driver", "jvm", "workers", "postgres")}
    return {
        "import": name,
        "events_per_second": events / seconds_of(answer),
        "cpu_us_per_event": sum(spent.values()) / events * 1e6,
        **{f"{who}_us": seconds / events * 1e6 for who, seconds in spent.items()},
        **{f"{stage}_s": answer["stages"].get(stage, {}).get("wall", 0.0) for stage in _STAGES},
        "workers_mb": answer["memory"]["workers"],
        "jvm_mb": answer["memory"]["jvm"],
    }


def main() -> None:
    """All events, a tenth of them, and the tenth on one core."""
    columns = ["import", "events_per_second", "limit", "ratio", "ratio_limit", "ok", "cpu_us_per_event"]
    title = f"importing {EVENTS:,} events (each stage, and whose CPU it was: in the file)"
    report = Report("import_", title, [*columns, "workers_mb", "jvm_mb"])
    with tempfile.TemporaryDirectory() as folder:
        tenth, whole = Path(folder, "tenth"), Path(folder, "whole")
        for where, events in ((tenth, EVENTS // 10), (whole, EVENTS)):
            where.mkdir()
            make_history(where, sizes_of_rooms(events, max(events // 500, 2), events // 5))
        small, large = sorted(tenth.iterdir()), sorted(whole.iterdir())
        alone, few, all_of_them = once(small, cores=1), once(small), once(large)
    times_one = seconds_of(alone) / seconds_of(few)
    report.add(**row(f"{EVENTS // 10:,}, one core", alone))
    report.add(
        **row(f"{EVENTS // 10:,}", few),
        ratio=times_one,
        ratio_limit=f">= {LEAST_TIMES_ONE_CORE} times one core",
        ok="yes" if times_one >= LEAST_TIMES_ONE_CORE else "NO",
    )
    rate, times_tenth = EVENTS / seconds_of(all_of_them), seconds_of(all_of_them) / seconds_of(few)
    memory = all_of_them["memory"]
    well = rate >= LEAST_PER_SECOND and times_tenth <= MOST_TIMES_A_TENTH
    well = well and memory["workers"] < MOST_WORKERS_MB and memory["jvm"] < MOST_JVM_MB
    report.add(
        **row(f"{EVENTS:,}", all_of_them),
        limit=LEAST_PER_SECOND,
        ratio=times_tenth,
        ratio_limit=f"<= {MOST_TIMES_A_TENTH:.0f} times a tenth",
        ok="yes" if well else "NO",
    )
    report.finish()
