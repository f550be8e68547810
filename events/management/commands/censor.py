"""``manage.py censor``: replaces the stored JSON of redacted events by their pruned form."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from events.operations.censor import Censored, censor, due
from streams.conf import stream_settings
from streams.jobs.command import as_command_errors
from streams.runtime.amounts import duration, parse_duration
from streams.runtime.command_line import SiteCommand, option_of
from streams.writing.name import written_by

_PROGRESS_SECONDS = 2.0
_MOST_DAYS = 36_500


class Command(SiteCommand):
    """The command ``censor``.

    Exit status 0: all events that were due are censored. 1: some events could not be censored. 2: unusable arguments.
    """

    help = (
        "Replace the stored JSON of events that were redacted long enough ago (REPLSITE_CENSOR_AFTER_DAYS) by their pruned form. "
        "Safe beside writers and readers; may be stopped and run again at any time."
    )

    examples = (
        ("censor --dry-run", "how many are due"),
        ("censor", "all that are due by the setting"),
        ("censor --older-than 30d --limit 10000 --json", "at most so many, the outcome as JSON"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the options."""
        parser.add_argument(
            "--older-than", type=option_of(parse_duration), metavar="DURATION",
            help="instead of the setting: redacted for at least so long (30s, 15m, 12h, 7d, 4w)",
        )  # fmt: skip
        parser.add_argument("--limit", type=int, metavar="N", help="at most so many events in this run")
        parser.add_argument("--dry-run", action="store_true", help="only say how many would be censored")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """Censors events until none is due or the limit is reached. ``--dry-run`` only counts them."""
        limit = options["limit"]
        if limit is not None and limit < 1:
            raise CommandError(f"--limit must be at least 1, not {limit}.", returncode=2)
        age = options["older_than"]
        if age is None and (days := stream_settings().censor_after_days) is not None:
            age = timedelta(days=min(days, _MOST_DAYS))
        with as_command_errors():
            self._run(age, limit, options)

    def _run(self, age: timedelta | None, limit: int | None, options: dict[str, Any]) -> None:
        started_at, done = time.monotonic(), Censored()
        before = left = 0
        using = stream_settings().database
        if age is not None:
            before = left = due(age, using)
            if not options["dry_run"] and before:
                done = self._censor(age, min(before, limit or before), using)
                left = due(age, using)
        outcome = {
            "due": before, "censored": done.events, "failed": len(done.failed), "left": left, "rooms": done.rooms,
            "seconds": round(time.monotonic() - started_at, 3), "dry_run": options["dry_run"], "never": age is None,
        }  # fmt: skip
        self.stdout.write(json.dumps(outcome) if options["json"] else _words(outcome))
        if done.failed:
            shown = ", ".join(done.failed[:5])
            raise CommandError(
                f"{len(done.failed)} events were left as they are, their pruned form is not the same event: {shown}. Look at "
                f"them with manage.py explain_visibility or in the admin; readers get them pruned all the same.",
                returncode=1,
            )

    @written_by("censor")
    def _censor(self, age: timedelta, wanted: int, using: str) -> Censored:
        done, started_at = Censored(), time.monotonic()
        reported_at = started_at
        for done in censor(age, using, wanted):
            now = time.monotonic()
            if now - reported_at >= _PROGRESS_SECONDS:
                reported_at, rate = now, done.events / (now - started_at)
                left = (wanted - done.events) / max(rate, 1e-9)
                self.stderr.write(f"censor: {done.events} of {wanted} events, {rate:.0f}/s, {duration(left)} left")
        return done


def _words(outcome: dict[str, Any]) -> str:
    if outcome["never"]:
        return "REPLSITE_CENSOR_AFTER_DAYS is never: nothing was censored. --older-than names an age for this run."
    if outcome["dry_run"]:
        return f"{outcome['due']} events would be censored"
    return (
        f"{outcome['censored']} events of {outcome['rooms']} rooms censored in {duration(outcome['seconds'])}; due: "
        f"{outcome['due']} -> {outcome['left']}"
    )
