"""``manage.py pipeline run``: runs the live pipeline until SIGTERM or SIGINT.

With ``--until-idle``, the command also ends when the query has nothing to do.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pipeline.spark.masters import master_argument
from streams.jobs.command import as_command_errors
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]


class Command(SiteCommand):
    """The command that runs the query that keeps counts of rooms current."""

    help = "Keep counts of rooms current with Spark, from the streams, each fact once."

    examples = (
        ("pipeline run", "until SIGTERM"),
        ("pipeline run --until-idle 10", "end when 10 s brought nothing"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["run"], help="run it until SIGTERM or --until-idle")
        parser.add_argument("--master", type=master_argument, metavar="URL", help="Spark master (default: the setting)")
        parser.add_argument(
            "--until-idle", type=float, metavar="SECONDS", help="end when nothing was left for this long"
        )

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return options.get("until_idle") is None

    def handle(self, *args: Any, **options: Any) -> None:
        """Runs the query. The last line of the output has the vectors that its tables have reached."""
        from pipeline.live.process import LiveOptions, run  # noqa: PLC0415 - pyspark is an optional part

        if options["until_idle"] is not None and not 0 <= options["until_idle"] < float("inf"):
            raise CommandError("--until-idle must be a number of seconds from 0.", returncode=2)
        stopped: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: stopped.append(received))
        live = LiveOptions(options["master"] or "", options["until_idle"])
        with as_command_errors():
            reached = run(live, lambda: bool(stopped), lambda: self.announce_ready("ready pipeline"))
        self.stdout.write(json.dumps({"positions": reached}))
