"""The kinds of job that this room brings from others: checking the streams, censoring. Registered when Django has loaded.

A kind is a thin wrapper: what it does is the same function that the command of its name calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from events.maintenance.censor import Censored, censor, due
from pipeline.errors import UnusableArguments
from pipeline.jobs.fields import Entry, JobField
from pipeline.jobs.run import JobRun, register
from streams.conf import stream_settings
from streams.db import driver
from streams.maintenance.check import inspect_streams

__all__ = ["CensorKind", "CheckStreamsKind", "register_kinds"]

_MOST_DAYS = 36_500


def only(arguments: Mapping[str, Any], *names: str) -> None:
    """Raises ``UnusableArguments`` for a name that a kind does not know."""
    unknown = sorted(set(arguments) - set(names))
    if unknown:
        known = ", ".join(names) or "none"
        raise UnusableArguments(f"Unknown arguments: {', '.join(map(str, unknown))}. There are: {known}.")


def flag(arguments: Mapping[str, Any], name: str) -> bool:
    """What is true or false, and false when nothing is said; raises ``UnusableArguments``: the text "false" is no false."""
    value = arguments.get(name)
    if value is not None and not isinstance(value, bool):
        raise UnusableArguments(f"{name} must be true or false, not {value!r:.100}.")
    return bool(value)


class CheckStreamsKind:
    """Whether sequences, tables and stored positions agree; changes nothing."""

    help = "Compare sequences, tables and stored positions of all streams; changes nothing."
    fields = ()
    changes_nothing = True

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Takes no arguments."""
        only(arguments)
        return {}

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


class CensorKind:
    """Replaces the JSON of events that were redacted long enough ago."""

    help = "Replace the stored JSON of events that were redacted long enough ago by their pruned form."
    fields = (JobField("days", Entry.NUMBER, "redacted for at least so many days; none: as the site is set"),)

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``days``: redacted for at least so long (the setting, if left out); ``dry_run``: only count."""
        only(arguments, "days", "dry_run")
        days = arguments.get("days", stream_settings().censor_after_days)
        is_number = isinstance(days, int | float) and not isinstance(days, bool)
        if not is_number or not 0 <= days <= _MOST_DAYS:
            raise UnusableArguments(f"days must be a number from 0 to {_MOST_DAYS:,}, not {days!r}.")
        return {"days": days, "dry_run": flag(arguments, "dry_run")}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Room by room."""
        age = timedelta(days=run.arguments["days"])
        before = due(age, run.using)
        run.note_before({"due": before})
        done = Censored()
        if not run.arguments["dry_run"]:
            with run.stage("censor", before, "events") as count:
                for done in censor(age, run.using):
                    count.add(done.events - count())
        run.note_after({"due": due(age, run.using)})
        return {"censored": done.events, "rooms": done.rooms, "failed": list(done.failed[:100])}


def register_kinds() -> None:
    """Make them known."""
    register("check streams", CheckStreamsKind())
    register("censor", CensorKind())
