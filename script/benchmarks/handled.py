"""Milliseconds from commit to handled, and CPU for each fact, at several paces, beside an outbox table in the same run.

The shops are those of ``script/bench outbox``: each fact is committed with a business row and has a row as its effect, one fact a
transaction. At 1,000 a second five facts are committed together, and facts are handled in chunks: one by one, no tool keeps up.
``REPLSITE_BENCH_ROUNDS`` is the number of rounds (3).
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from script.benchmarks.latency import percentile
from script.benchmarks.outbox import CHUNK, Figures, Tool, opened
from script.benchmarks.report import Report

PACES = {20: (100, 1, 1), 200: (1_000, 1, 1), 1_000: (4_000, 5, CHUNK)}
"""Facts a second -> facts in a round, facts in a transaction, most facts that are handled together."""
TOOLS = [Tool("replsite", "ours", "psycopg2"), Tool("outbox table", "outbox_table", "psycopg2")]


def main() -> None:
    """Measures both in turns."""
    report = Report("handled", "milliseconds from commit to handled, and of CPU for each fact")
    measured: dict[tuple[int, str], list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        shops = [stack.enter_context(opened(tool, n, Path(folder))) for n, tool in enumerate(TOOLS)]
        for shop in shops:
            shop.backlog(100)
            shop.handle(1)
        for _ in range(int(os.environ.get("REPLSITE_BENCH_ROUNDS", "3"))):
            for per_second, (facts, together, rows) in PACES.items():
                for shop in shops:
                    figures = shop.paced(per_second, facts, per_second, together, rows)
                    measured[per_second, shop.tool.name].append(figures)
    for (per_second, tool), figures in measured.items():
        report.add(
            per_second=per_second,
            tool=tool,
            p50=statistics.median(percentile(list(one.delays), 0.5) for one in figures),
            p99=statistics.median(percentile(list(one.delays), 0.99) for one in figures),
            cpu=statistics.median(one.cpu for one in figures),
            cpu_application=statistics.median(one.application for one in figures),
            cpu_postgresql=statistics.median(one.server for one in figures),
        )
    report.finish()
