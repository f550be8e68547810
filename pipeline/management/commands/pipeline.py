"""``manage.py pipeline run``: the live pipeline, until SIGTERM, SIGINT or, with ``--until-idle``, until nothing is left."""

from __future__ import annotations

import json
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pipeline.conf import pipeline_settings
from pipeline.errors import PipelineError

__all__ = ["Command"]


class Command(BaseCommand):
    """Runs the queries that keep derived tables current."""

    help = "Keep derived tables (events per room) current with Spark, from the streams, exactly once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Arguments: the action, the Spark master, and when to stop."""
        parser.add_argument("action", choices=["run"])
        parser.add_argument("--master", metavar="URL", help="Spark master (default: local[2])")
        parser.add_argument(
            "--until-idle", type=float, metavar="SECONDS", help="end when nothing was left for this long"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run, and print the vector reached as the last line."""
        from pipeline.live import LiveOptions, run  # noqa: PLC0415 - pyspark is an optional part

        told: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: told.append(received))
        live = LiveOptions(options["master"] or pipeline_settings().master, options["until_idle"])
        try:
            reached = run(live, lambda: bool(told), self._say_ready)
        except PipelineError as error:
            raise CommandError(str(error), returncode=1) from error
        self.stdout.write(json.dumps({"positions": {"events": reached}}))

    def _say_ready(self) -> None:
        self.stdout.write("ready pipeline")
        self.stdout.flush()
