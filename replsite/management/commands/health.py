"""``manage.py health``: is everything well, and if not, what to do."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from replsite.health import summary
from streams.command_line import SiteCommand


class Command(SiteCommand):
    """Prints each part with a sentence."""

    help = "Say whether everything is well: database, migrations, streams. Exit status 1 when something is wrong."

    examples = (
        ("health", "each part with a sentence"),
        ("health --json | jq .well", "for scripts"),
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the report; exit 1 when it is not well."""
        report = summary()
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json()))
        else:
            self.stdout.write(f"{'well' if report.well else 'NOT WELL'}: {report.sentence}")
            for part in report.parts:
                self.stdout.write(f"  {'well    ' if part.well else 'NOT WELL'}  {part.name}: {part.sentence}")
        if not report.well:
            sys.exit(1)
