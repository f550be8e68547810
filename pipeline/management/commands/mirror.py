"""``manage.py mirror DATABASE SERVER``: keeps the rooms of a running Synapse here, a moment behind.

The last line of standard output is a JSON object. Exit status 0: ended by a signal, or by ``--once``, with all events
stored; 1: events were put aside, or the mirror could not go on; 2: unusable arguments.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pipeline.frames.sources.inputs import is_url
from pipeline.spark.masters import master_argument
from streams.conf import stream_settings
from streams.core.recorded import check_record_name
from streams.jobs.command import as_command
from streams.replication.connectors import check_sendable, connector_to, name_of_server, redis_address
from streams.replication.errors import BadAddress, BadCertificate
from streams.replication.transport.tls import add_client_arguments
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]


class Command(SiteCommand):
    """The command that mirrors a Synapse. It fills the rooms first, and goes on where it ended."""

    help = (
        "Keep the rooms of a running Synapse here, a moment behind: an import fills them first, then the server's replication "
        "tells what is new, and its database is read. Nothing is written there. Goes on where it ended."
    )

    examples = (
        ("mirror postgresql://reader@db.example.org/synapse tcp://127.0.0.1:9092", "Synapse up to 1.66"),
        (
            "mirror postgresql://reader@db.example.org/synapse 'redis://127.0.0.1:6379?channel=example.org'",
            "a current Synapse",
        ),
        ("mirror postgresql://reader@db.example.org/synapse tcp://127.0.0.1:9092 --once", "catch up, and end"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("database", metavar="DATABASE", help="postgresql:// URL of its database; a role that reads")
        parser.add_argument(
            "address",
            metavar="SERVER",
            help="tcp://HOST:PORT, tls://HOST:PORT, or redis://HOST:PORT[/DB]?channel=SERVER_NAME",
        )
        parser.add_argument("--name", default="mirror", help="of the mirror and its record (default: %(default)s)")
        parser.add_argument("--server-name", help="name that the server must have (default: ours)")
        add_client_arguments(parser)
        parser.add_argument("--master", type=master_argument, metavar="URL", help="Spark master of the first filling")
        parser.add_argument("--once", action="store_true", help="end when everything is here that there is now")
        parser.add_argument("--json", action="store_true", help="no report on stderr")

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return not options.get("once")

    def handle(self, *args: Any, **options: Any) -> None:
        """Mirrors, prints the figures, and exits with the status that the module's docstring lists."""
        from pipeline.mirror.mirroring import MirrorRequest, mirror  # noqa: PLC0415 - slow to import

        try:
            request = MirrorRequest(**_arguments(options), master=options["master"], once=options["once"])
        except (BadAddress, BadCertificate, ValueError) as error:
            raise CommandError(str(error), returncode=2) from error
        try:
            with as_command():
                outcome = mirror(request, self.announce_ready, sys.stderr)
        except KeyboardInterrupt:
            raise CommandError("Interrupted. What is stored stays; the same command goes on.", returncode=1) from None
        self.stdout.write(json.dumps(outcome.summary()))
        if aside := outcome.refused + (outcome.filled or {}).get("quarantined", 0):
            if not options["json"]:
                where = "table pipeline_quarantinedline, quarantined lines in the admin"
                self.stderr.write(f"{aside:,} events were put aside, with the reasons: {where}.")
            sys.exit(1)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the checked arguments. Raises ``BadAddress``, ``BadCertificate`` and ``ValueError``."""
    if not is_url(options["database"]):
        raise BadAddress(
            f"{options['database']!r:.200} is no database of a running server: write postgresql://ROLE@HOST/DATABASE."
        )
    redis = redis_address(options["address"])
    server_name = name_of_server(options["server_name"], redis) or stream_settings().server_name
    name = check_record_name(options["name"])
    check_sendable(name, server_name)
    return {
        "source": options["database"],
        "address": options["address"],
        "connector": connector_to(options, redis, name, server_name),
        "name": name,
        "server_name": server_name,
    }
