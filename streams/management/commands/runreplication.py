"""``manage.py runreplication --bind HOST:PORT``: runs a replication server without HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from streams.conf import stream_settings
from streams.replication.errors import BadAddress, BadCertificate, BadRights, ReplicationError
from streams.replication.transport.addresses import Address, missing_server_hint
from streams.replication.transport.tls import TlsFiles, add_server_arguments
from streams.runtime.command_line import SiteCommand


class Command(SiteCommand):
    """The command ``runreplication``. It serves followers until SIGINT or SIGTERM.

    The exit status is 1 if the server cannot start, and 2 for unusable arguments.
    """

    help = "Serve the replication protocol to followers."

    examples = (
        ("runreplication", "on 127.0.0.1:9092"),
        ("runreplication --bind 127.0.0.1:0", "a free port; 'ready …' names it"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--bind", default="127.0.0.1:9092", metavar="HOST:PORT", help="where to listen (default: %(default)s)"
        )
        add_server_arguments(parser)

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return True

    def handle(self, *args: Any, **options: Any) -> None:
        if hint := missing_server_hint():
            raise CommandError(hint, returncode=1)
        from streams.replication.serve import Endpoints, serve  # noqa: PLC0415
        from streams.replication.server.consumer import ReplicationConsumer  # noqa: PLC0415 - loads the reactor

        try:
            wanted = Endpoints(replication=Address.parse(options["bind"]))
            serve(
                ReplicationConsumer.as_asgi(),
                wanted,
                self._announce_ready,
                TlsFiles.of_server(stream_settings(), options),
            )
        except (BadAddress, BadCertificate, BadRights) as error:
            raise CommandError(str(error), returncode=2) from error
        except ReplicationError as error:
            raise CommandError(str(error), returncode=1) from error

    def _announce_ready(self, endpoints: Any) -> None:
        self.announce_ready(endpoints.ready_line)
