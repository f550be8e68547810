"""What every benchmark shares: interleaved rounds, ratios pair by pair, a table and a JSON file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.db import connection
from rich.console import Console
from rich.table import Table

__all__ = ["BESIDE_OPEN", "Report", "answer_of", "database_url", "median_ratio", "rounds"]

RESULTS = Path(__file__).resolve().parents[2] / "build" / "bench"
BESIDE_OPEN = ", beside an open transaction"
"""How the name of a measure ends that is taken beside a transaction that stays open."""


def rounds(number: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run each measure in turn, ``number`` times over (A B A B …), so that drift of the machine hits all alike."""
    results: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(number):
        for name, measure in measures.items():
            results[name].append(measure())
    return results


def answer_of(*command: str) -> dict[str, Any]:
    """Runs a program of Python; its last line is a JSON object, which is returned."""
    found = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
    )
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


def database_url() -> str:
    """Where this process's database is, for other processes."""
    connection.ensure_connection()
    where = connection.settings_dict
    return f"postgres://{where['USER']}:{where['PASSWORD']}@{where['HOST']}:{where['PORT']}/{where['NAME']}"


def median_ratio(above: list[float], below: list[float]) -> float:
    """The median of the ratios pair by pair: steadier than the ratio of the two medians when the machine drifts."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


class Report:
    """Rows of one benchmark; printed as a table, written as ``build/bench/NAME.json``."""

    def __init__(self, name: str, title: str, columns: Sequence[str] = ()) -> None:
        """``columns`` are those of the table, if the file has more than it can show."""
        self.name, self.title, self.columns = name, title, columns
        self.rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        """Add a row; keys are the columns."""
        self.rows.append(row)

    def finish(self) -> None:
        """Print the table and write the file."""
        columns = self.columns or list(dict.fromkeys(column for row in self.rows for column in row))
        table = Table(*columns, title=self.title)
        for row in self.rows:
            table.add_row(*(_shown(row.get(column)) for column in columns))
        Console().print(table)
        RESULTS.mkdir(parents=True, exist_ok=True)
        machine = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 1),
            "loop_ms": round(min(_loop_ms() for _ in range(5)), 1),
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        path = RESULTS / f"{self.name}.json"
        path.write_text(
            json.dumps({"benchmark": self.name, "title": self.title, "machine": machine, "rows": self.rows}, indent=1)
        )
        Console().print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def _loop_ms() -> float:
    """Milliseconds of CPU of the same loop each time, by which results of different machines can be compared."""
    begun = time.process_time()
    for number in range(1_000_000):
        number * number % 7
    return (time.process_time() - begun) * 1000


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return "" if value is None else str(value)
