"""The kinds of job whose work other packages do: checking the streams, and censoring events.

Each kind is a thin wrapper around a function that a command calls too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from events.maintenance.censor import Censored, censor, due
from streams.conf import stream_settings
from streams.db import driver
from streams.jobs.arguments import Argument, Type, dry_run
from streams.jobs.run import JobKind, JobRun
from streams.maintenance.check import inspect_streams
from streams.maintenance.table_sequences import inspect_tables

__all__ = ["CensorKind", "CheckStreamsKind"]


class CheckStreamsKind(JobKind):
    """The kind of job that checks whether sequences, tables and stored positions of streams agree. The job changes nothing."""

    name = "check streams"
    help = "Compare sequences, tables and stored positions of all streams; changes nothing."
    changes_nothing = True

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Checks all streams. Returns a summary with the number of streams, and the verdict and the fix for each wrong stream."""
        connection = driver.direct_connection(run.using, application_name="replsite job")
        try:
            with run.stage("check", None, "streams") as count, connection.cursor() as cursor:
                findings, tables = inspect_streams(cursor), inspect_tables(cursor)
                count.add(len(findings))
        finally:
            connection.close()
        wrong = {found.stream: f"{found.verdict}: {found.fix}" for found in findings if not found.well}
        wrong |= {f"{one.table}.{one.column}": f"{one.verdict}: {one.fix}" for one in tables if not one.well}
        return {"streams": len(findings), "wrong": wrong}


class CensorKind(JobKind):
    """The kind of job that replaces the stored JSON of redacted events by the pruned form of these events.

    An event is due for censoring some days after its redaction.
    """

    name = "censor"
    help = "Replace the stored JSON of events that were redacted long enough ago by their pruned form."
    arguments = (
        Argument(
            "days", Type.NUMBER, "redacted for at least so many days; none: as the site is set", bounds=(0, 36_500),
            default=lambda: stream_settings().censor_after_days,
        ),
        dry_run("only say how many would be censored"),
    )  # fmt: skip

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Counts the events that are due for censoring. Returns the summary of a dry run."""
        found = {"due": due(timedelta(days=run.arguments["days"]), run.using)}
        run.note_before(found)
        run.note_after(found)
        return {"censored": 0, "rooms": 0, "failed": []}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Censors the events that are due for censoring, room by room. Returns the summary, which names at most 100 failures."""
        age = timedelta(days=run.arguments["days"])
        before = due(age, run.using)
        run.note_before({"due": before})
        done = Censored()
        with run.stage("censor", before, "events") as count:
            for done in censor(age, run.using):
                count.add(done.events - count())
        run.note_after({"due": due(age, run.using)})
        return {"censored": done.events, "rooms": done.rooms, "failed": list(done.failed[:100])}
