"""The kinds of job whose work is done by other packages: checking the streams, and censoring.

Each kind is a thin wrapper around a function that a command calls too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from events.maintenance.censor import Censored, censor, due
from pipeline.jobs.arguments import Argument, Type, dry_run
from pipeline.jobs.run import JobKind, JobRun
from streams.conf import stream_settings
from streams.db import driver
from streams.maintenance.check import inspect_streams

__all__ = ["CensorKind", "CheckStreamsKind"]


class CheckStreamsKind(JobKind):
    """The kind of job that checks whether sequences, tables and stored positions of streams agree. It changes nothing."""

    name = "check streams"
    help = "Compare sequences, tables and stored positions of all streams; changes nothing."
    changes_nothing = True

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Returns a summary with the number of streams checked and, for each wrong one, the verdict and the fix."""
        connection = driver.direct_connection(run.using, application_name="replsite job")
        try:
            with run.stage("check", None, "streams") as count, connection.cursor() as cursor:
                findings = inspect_streams(cursor)
                count.add(len(findings))
        finally:
            connection.close()
        wrong = {found.stream: f"{found.verdict}: {found.fix}" for found in findings if not found.well}
        return {"streams": len(findings), "wrong": wrong}


class CensorKind(JobKind):
    """The kind of job that censors: it replaces the stored JSON of redacted events by their pruned form.

    An event is due when it was redacted long enough ago.
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
        """Counts the events that are due. Returns the summary of a dry run."""
        found = {"due": due(timedelta(days=run.arguments["days"]), run.using)}
        run.note_before(found)
        run.note_after(found)
        return {"censored": 0, "rooms": 0, "failed": []}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Censors what is due, room by room. The summary names at most 100 of the failures."""
        age = timedelta(days=run.arguments["days"])
        before = due(age, run.using)
        run.note_before({"due": before})
        done = Censored()
        with run.stage("censor", before, "events") as count:
            for done in censor(age, run.using):
                count.add(done.events - count())
        run.note_after({"due": due(age, run.using)})
        return {"censored": done.events, "rooms": done.rooms, "failed": list(done.failed[:100])}
