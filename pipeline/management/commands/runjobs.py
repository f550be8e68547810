"""``manage.py runjobs``: carries out the jobs that the admin or another service queued, one after another.

Several may run at once. SIGTERM ends it: the job at hand stops at its next step and is queued again, as is one that is killed
with it. A database that is started anew is waited for.
Exit status 0: stopped, or with ``--once`` all jobs are done; 1: with ``--once`` one failed; or the database is away.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from pipeline.jobs.command import told_errors
from pipeline.jobs.queue import JobServer
from streams.conf import stream_settings
from streams.runtime.command_line import SiteCommand
from streams.writing import process

__all__ = ["Command"]


class Command(SiteCommand):
    """Serves the queue of jobs."""

    help = "Carry out queued jobs until SIGTERM or Ctrl-C."

    examples = (
        ("runjobs", "until SIGTERM or Ctrl-C"),
        ("runjobs --once", "what is queued now, then end"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--once", action="store_true", help="end when nothing is queued")

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return not options.get("once")

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve, and give the writer's name back at the end."""
        process.use_instance("runjobs-{n}")
        server = JobServer(stream_settings().database, sys.stderr, self.stdout.write)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        with told_errors():
            server.run(once=options["once"])
            process.retire_all()
        if options["once"] and server.failed:
            sys.exit(1)
