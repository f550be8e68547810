"""``resync reader``: sets the stored cursors of a named reader that is stopped."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streams import registry
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.epochs import check_epoch, unstamp
from streams.errors import TokenError, UnknownStream
from streams.follow.handlers import effects_database_of, load_handlers
from streams.follow.reset import resync_reader
from streams.follow.resync_plan import Goal, plan_resync, sentences_of
from streams.follow.stored_cursors import known_streams
from streams.jobs.command import CommandLine, command_line
from streams.reading.rows import writer_names
from streams.runtime.command_line import asked_by
from streams.runtime.moments import moment_of


@command_line
class ResyncReader(CommandLine):
    """Sets a reader's stored cursors, and says from where to where, and what that means."""

    words = "resync reader"
    about = (
        "Set a named reader that is stopped to the present positions, or to a token; facts in between are passed over. Or "
        "replay it from a time: facts since then are handled again. Leaves a trace."
    )
    example = "resync reader billing --since 2026-11-24T14:00 --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("reader", metavar="NAME", help="the reader")
        place = parser.add_mutually_exclusive_group()
        place.add_argument(
            "--from", dest="start", action="append", default=[], metavar="[STREAM=]TOKEN",
            help="go on after this token; STREAM may be left out when the reader follows one stream only",
        )  # fmt: skip
        place.add_argument(
            "--since", metavar="TIME",
            help="handle again what was inserted since: a time in UTC (2026-11-24T14:00), a date or an age (12h); on all streams "
                 "of the reader, of which none is moved forward",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true", help="only say which facts would be handled again or passed over"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object for each stream")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        load_handlers()
        reader = options["reader"]
        goal = self._goal(reader, options["since"], options["start"])
        planned = plan_resync(reader, goal)
        for sentence in sentences_of(planned, goal):
            command.stderr.write(sentence)
        moves = [plan.move for plan in planned] if options["dry_run"] else resync_reader(reader, goal, asked_by())
        counts = {plan.move.stream: plan for plan in planned}
        for new in moves:
            was = "no cursor" if new.was is None else _shown(new.was)
            if options["json"]:
                found = {"reader": reader, "stream": new.stream, "was": was, "now": _shown(new.now)}
                if options["dry_run"]:
                    found |= {"again": counts[new.stream].again.facts, "passed": counts[new.stream].passed.facts}
                command.stdout.write(json.dumps(found))
            else:
                command.stdout.write(f"{reader} on {new.stream}: {was} -> {_shown(new.now)}")

    def _goal(self, reader: str, since: str | None, tokens: list[str]) -> Goal:
        if since:
            try:
                return moment_of(since, time.time_ns() // 1_000_000)
            except ValueError as error:
                raise CommandError(f"--since: {error}", returncode=2) from error
        try:
            return self._tokens(reader, tokens)
        except (TokenError, UnknownStream) as error:
            raise CommandError(f"--from: {error}", returncode=2) from error

    def _tokens(self, reader: str, texts: list[str]) -> dict[str, VectorToken]:
        using = stream_settings().database
        with closing(driver.direct_connection(using, application_name="replsite resync")) as connection:
            cursor = connection.cursor()
            return dict(self._token(cursor, reader, text) for text in texts)

    def _token(self, cursor: Any, reader: str, text: str) -> tuple[str, VectorToken]:
        stream, equals, token = text.rpartition("=")
        if not equals:
            stream = self._only_stream(reader, text)
        registry.get(stream)
        plain, epoch = unstamp(token)
        check_epoch(cursor, epoch, f"Token {token}")
        return stream, VectorToken.parse(plain, writer_names(cursor, stream))

    def _only_stream(self, reader: str, text: str) -> str:
        using = effects_database_of(reader)
        with closing(driver.direct_connection(using, application_name="replsite resync")) as connection:
            follows = known_streams(connection.cursor(), reader)
        if len(follows) != 1:
            raise TokenError(f"{text}: reader {reader!r} follows {len(follows)} streams; write STREAM=TOKEN.")
        return follows[0]


def _shown(token: VectorToken) -> str:
    return " ".join([str(token.base), *(f"{writer}:{position}" for writer, position in sorted(token.entries.items()))])
