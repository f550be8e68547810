"""The kinds of job that this room brings from others: checking the streams, censoring.

A kind is a thin wrapper: what it does is the same function that the command of its name calls.
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
    """Whether sequences, tables and stored positions agree; changes nothing."""

    name = "check streams"
    help = "Compare sequences, tables and stored positions of all streams; changes nothing."
    changes_nothing = True

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """The summary names what is wrong."""
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
    """Replaces the JSON of events that were redacted long enough ago."""

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
        """Counts what is due."""
        found = {"due": due(timedelta(days=run.arguments["days"]), run.using)}
        run.note_before(found)
        run.note_after(found)
        return {"censored": 0, "rooms": 0, "failed": []}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Room by room."""
        age = timedelta(days=run.arguments["days"])
        before = due(age, run.using)
        run.note_before({"due": before})
        done = Censored()
        with run.stage("censor", before, "events") as count:
            for done in censor(age, run.using):
                count.add(done.events - count())
        run.note_after({"due": due(age, run.using)})
        return {"censored": done.events, "rooms": done.rooms, "failed": list(done.failed[:100])}
