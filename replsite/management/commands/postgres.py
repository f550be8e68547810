"""Says whether the embedded PostgreSQL runs, and stops it: ``manage.py postgres status`` and ``manage.py postgres stop``."""

from __future__ import annotations

import sys
from json import dumps
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from replsite.health import EMBEDDED
from replsite.postgres.backend.base import embedded_server
from replsite.postgres.errors import EmbeddedPostgresError
from streams.conf import stream_settings
from streams.runtime.command_line import SITE_CHECKS, SiteCommand


class Command(SiteCommand):
    """The command ``postgres``. ``status`` exits with status 3 if the server does not run, as ``pg_ctl status`` does."""

    requires_system_checks = (SITE_CHECKS,)
    help = "Show or stop the embedded PostgreSQL. Any command that needs it starts it."

    examples = (
        ("postgres status", "its process, port, folder and log"),
        ("postgres stop", "ends all sessions, and writes everything to the disk"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declares the argument."""
        parser.add_argument("action", choices=("status", "stop"), help="whether it runs and where; or stop it")
        parser.add_argument("--json", action="store_true", help="one JSON object instead of a line")

    def handle(self, *args: Any, action: str, json: bool, **options: Any) -> None:
        """Stops the server, or prints how it is."""
        if settings.DATABASES[stream_settings().database]["ENGINE"] != EMBEDDED:
            raise CommandError(
                "The database is not the embedded PostgreSQL: DATABASE_URL is set. Use that server's tools."
            )
        server = embedded_server()
        try:
            stopped = action == "stop" and server.stop()
        except (EmbeddedPostgresError, OSError) as error:
            raise CommandError(str(error), returncode=1) from error
        found = server.running()
        if json:
            more = {"folder": str(server.folder), "log": str(server.log)}
            number, port = (found.pid, found.port) if found else (None, None)
            line = dumps({"runs": found is not None, "stopped": stopped, "process": number, "port": port, **more})
        elif found is not None:
            line = f"runs: process {found.pid}, 127.0.0.1:{found.port}, {server.folder}. Log: {server.log}"
        else:
            line = f"{'stopped' if stopped else 'does not run'}: {server.folder}"
        self.stdout.write(line)
        if action == "status" and found is None:
            sys.exit(3)
