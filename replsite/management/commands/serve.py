"""Serves the whole site in one process: ``manage.py serve --http HOST:PORT --replication HOST:PORT``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser
from django.db import Error as DjangoError
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

from replsite.postgres.backend.base import embedded_server
from streams.conf import stream_settings
from streams.db import driver
from streams.replication.errors import BadAddress, BadCertificate, BadRights, ReplicationError
from streams.replication.transport.addresses import Address, SocketFile
from streams.replication.transport.tls import TlsFiles, add_server_arguments
from streams.runtime.command_line import SiteCommand

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_EMBEDDED = "replsite.postgres.backend"


class Command(SiteCommand):
    """The command ``serve``. It runs until SIGINT or SIGTERM.

    Exit status 1 means that the server cannot start, and 2 that the arguments are unusable.
    """

    help = "Serve admin, metrics, health and the replication protocol in one process."

    examples = (
        ("serve", "pages on port 8000, replication on 9092; an empty embedded database gets its tables"),
        ("serve --http 127.0.0.1:0 --replication 127.0.0.1:0", "free ports; 'ready …' names them"),
        ("serve --http unix:/run/replsite/1.sock", "pages through a socket, for a proxy on this machine"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        for option, default, text in (
            ("--http", "127.0.0.1:8000", "pages, metrics and health; or unix:PATH"),
            ("--replication", "127.0.0.1:9092", "the replication protocol"),
        ):
            parser.add_argument(option, default=default, metavar="HOST:PORT", help=f"{text} (default: %(default)s)")
        parser.add_argument(
            "--behind-proxy",
            action="store_true",
            help="nobody but a reverse proxy reaches --http, which may then be an address of any network",
        )
        add_server_arguments(parser)

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return True

    def handle(self, *args: Any, **options: Any) -> None:
        from replsite.asgi import application  # noqa: PLC0415 - loads the reactor
        from replsite.history.sampler import Sampler  # noqa: PLC0415
        from replsite.http.request_places import request_threads_end  # noqa: PLC0415
        from replsite.notices.sender import NoticeSender  # noqa: PLC0415
        from streams.replication.serve import Endpoints, serve  # noqa: PLC0415

        self._sampler, self._notices, self._is_ready = Sampler(), NoticeSender(), False
        try:
            wanted = Endpoints(
                Address.parse(options["replication"]), SocketFile.parse(options["http"]), options["behind_proxy"]
            )
            self._make_tables(stream_settings().database)
            tls = TlsFiles.of_server(stream_settings(), options)
            serve(application, wanted, self._announce_ready, tls, when_cancelled=request_threads_end)
        except (BadAddress, BadCertificate, BadRights) as error:
            raise CommandError(str(error), returncode=2) from error
        except ReplicationError as error:
            raise CommandError(str(error), returncode=1) from error
        finally:
            self._notices.stop()
            self._sampler.stop()
            if self._is_ready:
                self._stop_database(stream_settings().database)

    def _make_tables(self, using: str) -> None:
        # The operator of another database decides when to run ``migrate``.
        connection = connections[using]
        if connection.settings_dict["ENGINE"] != _EMBEDDED:
            return
        try:
            if not MigrationRecorder(connection).has_table():
                self.stderr.write("The embedded database is empty: making its tables.", self.style.NOTICE)
                call_command("migrate", database=using, verbosity=0)
            elif self._are_tables_being_made(connection):  # another site that began at the same time is not through
                self.stderr.write("Another process is making its tables: waiting for it.", self.style.NOTICE)
                call_command("migrate", database=using, verbosity=0)
        except DjangoError as error:
            raise CommandError(driver.explain(error), returncode=1) from error
        finally:
            connection.close()

    def _are_tables_being_made(self, connection: BaseDatabaseWrapper) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT EXISTS (SELECT {driver.LOCK_HOLDERS})", [driver.migrate_key(cursor)])
            return bool(cursor.fetchone()[0])

    def _stop_database(self, using: str) -> None:
        if connections[using].settings_dict["ENGINE"] == _EMBEDDED and (server := embedded_server()).started_here():
            server.stop_for_good()

    def _announce_ready(self, endpoints: Any) -> None:
        # Only now: a server that cannot start stores no samples.
        self._sampler.start()
        self._notices.start()
        self._is_ready = True
        self.announce_ready(endpoints.ready_line)
