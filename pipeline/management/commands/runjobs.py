"""``manage.py runjobs``: runs the jobs that the admin or another service queued, one after another.

Several of these processes may run at once. SIGTERM or Ctrl-C ends a process: its job stops at the next step and is
queued again. A job whose process is killed is queued again, too. While the database cannot be reached, the process
waits.

Exit status 0: stopped, or with ``--once`` all jobs are done; 1: with ``--once`` a job failed, or the database is away.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from pipeline.conf import pipeline_settings
from streams.conf import stream_settings
from streams.jobs.command import as_command_errors
from streams.jobs.history import Kept
from streams.jobs.queue import JobServer
from streams.runtime.command_line import SiteCommand
from streams.writing.name import written_by

__all__ = ["Command"]


class Command(SiteCommand):
    help = "Carry out queued jobs until SIGTERM or Ctrl-C."

    examples = (
        ("runjobs", "until SIGTERM or Ctrl-C"),
        ("runjobs --once", "what is queued now, then end"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="end when nothing is queued")

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return not options.get("once")

    @written_by("runjobs")
    def handle(self, *args: Any, **options: Any) -> None:
        conf = pipeline_settings()
        kept = Kept(conf.job_history_days, conf.job_history_count)
        server = JobServer(stream_settings().database, sys.stderr, self.stdout.write, kept)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        with as_command_errors():
            server.run(once=options["once"])
        if options["once"] and server.failed:
            sys.exit(1)
