"""``check streams``: whether sequences, tables and stored positions of all streams agree. The command is ``check_streams``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from streams.db import driver
from streams.holds.weaknesses import losing
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, operation
from streams.maintenance.check import inspect_streams
from streams.maintenance.table_sequences import inspect_tables


@operation
class CheckStreams(Operation):
    """Checks whether sequences, tables and stored positions of streams agree, and whether facts can go around the holds."""

    name = "check streams"
    help = "Compare sequences, tables and stored positions of all streams; changes nothing."
    changes_nothing = True

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Checks all streams. Returns a summary with the number of streams, and the verdict and the fix for each wrong stream."""
        with (
            closing(driver.direct_connection(run.using, application_name="replsite job")) as connection,
            run.stage("check", None, "streams") as count,
            connection.cursor() as cursor,
        ):
            findings, tables, weak = inspect_streams(cursor), inspect_tables(cursor), losing(cursor)
            count.add(len(findings))
        wrong = {found.stream: f"{found.verdict}: {found.fix}" for found in findings if not found.well}
        wrong |= {f"{t.table}.{t.column}": f"{t.verdict}: {t.fix}" for t in tables if not t.well}
        wrong |= {f"holds of {w.stream or 'all streams'}": f"{w.problem}: {w.fix}" for w in weak}
        return {"streams": len(findings), "wrong": wrong}
