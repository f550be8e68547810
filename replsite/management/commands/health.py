"""Reports whether the site is well, and what to do if it is not: ``manage.py health``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from replsite.health import not_answering, summary
from replsite.http.deadline import Deadline, NoAnswer
from streams.runtime.command_line import SITE_CHECKS, SiteCommand


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise ArgumentTypeError(f"{text} is not between 0 and 3600 seconds")
    return seconds


class Command(SiteCommand):
    """The command ``health``. It prints each part of the site with a sentence."""

    requires_system_checks = (SITE_CHECKS,)
    help = "Say whether everything is well: database, migrations, disk, streams. Exit status 1 when something is wrong."

    examples = (
        ("health", "each part with a sentence"),
        ("health --json | jq .well", "for scripts"),
        ("health --timeout 2", "a database that hangs is not well after 2 s"),
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
        parser.add_argument(
            "--timeout", type=_seconds, default=10.0, metavar="S", help="give up after so long (default: 10)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints the report. Exits with status 1 if the site is not well."""
        try:
            report = Deadline(summary, options["timeout"], "replsite-health").ask()
        except NoAnswer as error:
            report = not_answering(error.seconds)
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json()))
        else:
            self.stdout.write(f"{'well' if report.well else 'NOT WELL'}: {report.sentence}")
            for part in report.parts:
                self.stdout.write(f"  {'well    ' if part.well else 'NOT WELL'}  {part.name}: {part.sentence}")
        if not report.well:
            sys.exit(1)
