"""Says whether the embedded PostgreSQL runs, and stops it: ``manage.py postgres status`` and ``manage.py postgres stop``."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from replsite.health import EMBEDDED
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
        parser.add_argument("what", choices=("status", "stop"))

    def handle(self, *args: Any, what: str, **options: Any) -> None:
        """Stops the server, or prints how it is."""
        if settings.DATABASES[stream_settings().database]["ENGINE"] != EMBEDDED:
            raise CommandError(
                "The database is not the embedded PostgreSQL: DATABASE_URL is set. Use that server's tools."
            )
        from replsite.postgres.backend.base import embedded_server  # noqa: PLC0415 - the other engine may lack its extra

        server = embedded_server()
        if what == "stop":
            try:
                stopped = server.stop()
            except (EmbeddedPostgresError, OSError) as error:
                raise CommandError(str(error), returncode=1) from error
            self.stdout.write(f"stopped: {server.folder}" if stopped else f"does not run: {server.folder}")
        elif (found := server.running()) is None:
            self.stdout.write(f"does not run: {server.folder}")
            sys.exit(3)
        else:
            self.stdout.write(f"runs: process {found.pid}, 127.0.0.1:{found.port}, {server.folder}. Log: {server.log}")
