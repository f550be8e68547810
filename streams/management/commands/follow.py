"""``manage.py follow ADDRESS``: follows a replication server (``tcp://``, ``tls://`` or ``redis://``) and prints its facts."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from streams import registry
from streams.conf import stream_settings
from streams.core.recorded import check_record_name
from streams.errors import EpochChanged, StreamError, TokenError
from streams.replication.client.http_catch_up import HttpServers
from streams.replication.connectors import check_sendable, connector_to, name_of_server, redis_address
from streams.replication.errors import BadAddress, BadCertificate
from streams.replication.follow_command import CATCH_UP_CHOICES, Following, FollowRequest
from streams.replication.protocol.ordering import View
from streams.replication.transport.tls import add_client_arguments
from streams.runtime.command_line import SiteCommand

_TEXT_OPTIONS = {
    "name": "what to call ourselves",
    "server-name": "name that the server must have (default: ours)",
    "streams": "only these streams, separated by commas (default: all)",
    "record": "keep positions and rows in our database, under this name",
}


class Command(SiteCommand):
    """The command ``follow``. It prints facts as they arrive.

    The exit status is 0 when the tokens of ``--until`` are reached, 1 for a timeout or a wrong server, and 2 for
    unusable arguments.
    """

    help = "Follow a replication server and print its facts."

    examples = (
        ("follow tcp://127.0.0.1:9092", "all streams, from now on"),
        ("follow tcp://127.0.0.1:9092 --streams events --from events=0 --json", "everything there was, as JSON"),
        ("follow tcp://127.0.0.1:9092 --until events=815 --view linear --timeout 60", "in order, up to 815"),
        (
            "follow 'redis://127.0.0.1:6379?channel=example.org' --record main",
            "keep the positions that a current Synapse sends",
        ),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "address",
            metavar="ADDRESS",
            help="tcp://HOST:PORT, tls://HOST:PORT, or redis://HOST:PORT[/DB]?channel=SERVER_NAME",
        )
        for option, text in _TEXT_OPTIONS.items():
            parser.add_argument(f"--{option}", help=text)
        for option, name, text in (("--from", "start", "begin here"), ("--until", "until", "end there")):
            parser.add_argument(option, dest=name, action="append", default=[], metavar="STREAM=TOKEN", help=text)
        parser.add_argument(
            "--view",
            choices=[view.value for view in View],
            default=View.WRITER.value,
            help="each writer's facts at once, or all in order (%(default)s)",
        )
        parser.add_argument("--catch-up", choices=CATCH_UP_CHOICES, help="where missed facts come from")
        parser.add_argument(
            "--catch-up-url", action="append", default=[], metavar="[WRITER=]URL", help="of --catch-up http; repeatable"
        )
        add_client_arguments(parser)
        parser.add_argument("--secret-file", type=Path, help="holds the secret that --catch-up http has to show")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")
        parser.add_argument(
            "--timeout", type=_seconds, metavar="SECONDS", help="give up after this time: exit status 1"
        )

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return not (options.get("until") or options.get("timeout"))

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            request = _request(options)
        except (BadAddress, BadCertificate, TokenError) as error:
            raise CommandError(str(error), returncode=2) from error
        try:
            reached = _run(Following(request, self.stdout.fileno()), options["timeout"])
        except (BadAddress, EpochChanged, TokenError) as error:
            raise CommandError(str(error), returncode=2) from error
        except StreamError as error:
            raise CommandError(str(error), returncode=1) from error
        except OSError as error:  # the output failed; if the connection fails, the follower reconnects by itself
            raise CommandError(f"The output cannot be written: {error.strerror or error}.", returncode=1) from error
        if not reached:
            raise CommandError(
                f"Ended before {' '.join(options['until'])} was reached." if options["until"] else "The time is over.",
                returncode=1,
            )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (0 < seconds < math.inf):
        raise argparse.ArgumentTypeError(f"{text} is no time to wait: give a number of seconds above 0")
    return seconds


def _run(following: Following, timeout_seconds: float | None) -> bool:
    with asyncio.Runner(loop_factory=_fast_loop) as runner:
        return runner.run(following.run(timeout_seconds))


def _fast_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _request(options: dict[str, Any]) -> FollowRequest:
    redis = redis_address(options["address"])
    ours = stream_settings().server_name
    server_name = name_of_server(options["server_name"], redis) or ours
    if options["catch_up"] == "table" and server_name != ours:
        raise CommandError(
            f"--catch-up table reads the facts of {ours!r}; they are not those of {server_name!r}. Use --catch-up none.",
            returncode=2,
        )
    record = _record(options)
    is_ours = server_name == ours
    http = _http_servers(options)
    name = options["name"] or f"follow-{os.getpid()}"
    check_sendable(name, server_name)
    streams = _streams(options["streams"], known=registry.names() if is_ours else None)
    followed = streams or (registry.names() if is_ours else None)
    return FollowRequest(
        connector=connector_to(options, redis, name, server_name, streams or ()),
        name=name,
        server_name=server_name,
        streams=streams,
        start=_tokens(options["start"], "--from", followed),
        until=_tokens(options["until"], "--until", followed),
        view=View(options["view"]),
        uses_table=is_ours and not record and options["catch_up"] in (None, "table"),
        http=http,
        secret=_secret(options["secret_file"], is_ours=is_ours) if http else "",
        registers=is_ours and http is None and not record,
        record=record,
        json=options["json"],
    )


def _record(options: dict[str, Any]) -> str:
    # ``--catch-up table`` would read this site's own facts, for instance, not those of the recorded server.
    if not options["record"]:
        return ""
    if options["catch_up"] == "table":
        raise CommandError("--record keeps what a server sends: use it with --catch-up http or none.", returncode=2)
    if options["view"] != View.WRITER:
        raise CommandError("--record keeps rows as soon as they are known: use it with --view writer.", returncode=2)
    try:
        return check_record_name(options["record"])
    except ValueError as error:
        raise CommandError(f"--record: {error}", returncode=2) from error


def _http_servers(options: dict[str, Any]) -> HttpServers | None:
    is_wanted, urls = options["catch_up"] == "http", options["catch_up_url"]
    if is_wanted and not urls:
        raise CommandError("--catch-up http: say whom to ask with --catch-up-url http://HOST:PORT.", returncode=2)
    if not is_wanted and (urls or options["secret_file"]):
        raise CommandError("--catch-up-url and --secret-file belong to --catch-up http.", returncode=2)
    return HttpServers.parse(urls) if is_wanted else None


def _secret(file: Path | None, *, is_ours: bool) -> str:
    # The site's own secret is never sent to a foreign server.
    if file is None:
        return stream_settings().replication_secret if is_ours else ""
    try:
        secret = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise CommandError(f"--secret-file {file} cannot be read: {error}.", returncode=2) from error
    if not secret or not secret.isprintable():
        raise CommandError(f"--secret-file {file} does not hold one line with a secret.", returncode=2)
    return secret


def _streams(text: str | None, known: Sequence[str] | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name for name in text.split(",") if name)
    unknown = [name for name in names if known is not None and name not in known]
    if unknown or not names:
        raise CommandError(
            f"--streams: no stream {', '.join(unknown)!r}. Known: {', '.join(known or ())}.", returncode=2
        )
    return names


def _tokens(texts: Sequence[str], option: str, followed: Sequence[str] | None) -> dict[str, str]:
    """Returns the tokens given by an option such as ``--until``, as ``{stream: token as text}``.

    Raises `CommandError` for a stream that is not followed, because the follower would never reach its token.
    """
    tokens: dict[str, str] = {}
    for text in texts:
        stream, equals, token = text.partition("=")
        if not (stream and equals and token):
            raise CommandError(f"{option} {text!r}: write STREAM=TOKEN, for example events=17.", returncode=2)
        if followed is not None and stream not in followed:
            raise CommandError(f"{option} {text}: followed are {', '.join(followed)}, not {stream!r}.", returncode=2)
        tokens[stream] = token
    return tokens
