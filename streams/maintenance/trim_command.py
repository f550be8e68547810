"""The subjects that this app adds to the maintenance commands: ``purge stream`` and ``resync reader``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from django.core.management.base import BaseCommand, CommandError

from streams import registry
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.core.watermarks import trim_mark
from streams.db import driver
from streams.epochs import check_epoch, unstamp
from streams.errors import TokenError, UnknownStream
from streams.follow.cursors import known_streams
from streams.follow.handlers import effects_database_of, load_handlers
from streams.follow.reset import resync_reader
from streams.maintenance.confirm import YES_HELP, confirm_deletion
from streams.maintenance.subjects import asked_by, register
from streams.maintenance.trim import Keep, Trimmed, TrimPlan, TrimRequest, plan_trim, trim
from streams.reading.rows import writer_names
from streams.runtime.amounts import duration, keep_amount, parse_duration

__all__ = ["PurgeStream", "ResyncReader", "register_subjects"]

T = TypeVar("T")
PROGRESS_SECONDS = 1.0


def register_subjects() -> None:
    """Registers the subjects of this app. Called when a maintenance command first asks for its subjects."""
    register("purge", "stream", PurgeStream())
    register("resync", "reader", ResyncReader())


def _checked(read: Callable[[str], T]) -> Callable[[str], T]:
    """Returns a function that calls ``read``, and makes argparse show the text of a ``ValueError`` of ``read``.

    Argparse alone would hide this text.
    """

    def check(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return check


class PurgeStream:
    """The subject ``purge stream``: trims a stream's old facts."""

    help = (
        "Delete a stream's old facts, never beyond the slowest registered reader. Safe beside writers and readers; may be "
        "interrupted and repeated. Example: purge stream caches --keep 7d --dry-run"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("stream", metavar="NAME", help="the stream")
        parser.add_argument(
            "--keep", required=True, type=_checked(keep_amount), metavar="DURATION|COUNT",
            help="what stays: facts received within a duration (30s, 15m, 12h, 7d, 4w), or the newest COUNT facts",
        )  # fmt: skip
        parser.add_argument(
            "--horizon", type=_checked(parse_duration), default=timedelta(days=7), metavar="DURATION",
            help="a reader not seen for so long does not hold the trimming back (default: 7d)",
        )  # fmt: skip
        parser.add_argument(
            "--ignore-reader", action="append", default=[], metavar="NAME", help="a reader that does not count"
        )
        parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
        parser.add_argument("--yes", action="store_true", help=YES_HELP)
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        try:
            stream = registry.get(options["stream"])
        except UnknownStream as error:
            raise CommandError(str(error), returncode=2) from error
        amount = options["keep"]
        keep = Keep(age=amount) if isinstance(amount, timedelta) else Keep(facts=amount)
        request = TrimRequest(stream, keep, options["horizon"], tuple(options["ignore_reader"]), options["dry_run"])
        using = stream_settings().database
        with closing(driver.direct_connection(using, application_name=f"replsite purge {stream.name}")) as connection:
            cursor = connection.cursor()
            if not request.dry_run:
                dry = replace(request, dry_run=True)
                confirm_deletion(command, lambda: _trim(command, cursor, dry).lines(), is_sure=options["yes"])
            outcome = _trim(command, cursor, request)
        for line in [json.dumps(outcome.figures())] if options["json"] else outcome.lines():
            command.stdout.write(line)


def _trim(command: BaseCommand, cursor: Any, request: TrimRequest) -> _Outcome:
    """Trims the stream, or does the dry run. Says each second how far it is."""
    plan = plan_trim(cursor, request)
    done, began, told = Trimmed(position=plan.mark), 0.0, 0.0
    for done in trim(cursor, request):
        now = time.monotonic()
        began, told = began or now, told or now  # so that the wait before the first batch does not lower the rate
        if now - told >= PROGRESS_SECONDS:
            told, rate = now, done.rows / (now - began)
            left = max(plan.limit - done.position, 0)
            each = done.rows / max(done.position - plan.mark, 1)
            command.stderr.write(
                f"{request.stream.name}: {done.rows} rows, {rate:.0f} a second, at {done.position} of at most "
                f"{plan.limit}, about {duration(left * each / max(rate, 1))} left"
            )
    mark = trim_mark(cursor, request.stream.name).position
    return _Outcome(request, done, plan.mark, mark, plan_trim(cursor, request))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A trimming that was done, or its dry run.

    ``before`` and ``mark`` are the low-water mark before and after it. ``left`` is the plan of a trimming that would follow.
    """

    request: TrimRequest
    done: Trimmed
    before: int
    mark: int
    left: TrimPlan

    def figures(self) -> dict[str, Any]:
        """Returns the outcome as JSON."""
        slowest = self.left.slowest
        return {
            "stream": self.request.stream.name,
            "dry_run": self.request.dry_run,
            "rows_deleted": self.done.rows,
            "mark_before": self.before,
            "mark": self.mark,
            "would_reach": self.done.position,
            "linear": self.left.linear,
            "held_by": None if slowest is None else {"reader": slowest.reader, "position": slowest.position},
            "ignored": [one.reader for one in self.left.obstacles if one.ignored],
        }

    def lines(self) -> Iterator[str]:
        """Yields the outcome in words."""
        verb = "would be deleted" if self.request.dry_run else "deleted"
        reach = self.done.position if self.request.dry_run else self.mark
        yield f"{self.request.stream.name}: {self.done.rows} rows {verb}; low-water mark {self.before} -> {reach}"
        if (slowest := self.left.slowest) is not None:
            yield (
                f"held back by {slowest.reader}, which has read up to {slowest.position}; --ignore-reader lets it fall behind"
            )
        for one in self.left.obstacles:
            if one.ignored:
                yield f"not counted: {one.reader} at {one.position} ({one.ignored})"


class ResyncReader:
    """The subject ``resync reader``: sets a reader's stored cursors."""

    help = (
        "Set a named reader that is stopped to the present positions, or to a token; facts in between are passed over. Leaves "
        "a trace. Example: resync reader billing --from orders=1200"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("reader", metavar="NAME", help="the reader")
        parser.add_argument(
            "--from", dest="start", action="append", default=[], metavar="[STREAM=]TOKEN",
            help="go on after this token; STREAM may be left out when the reader follows one stream only",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="one JSON object for each stream")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        load_handlers()
        reader = options["reader"]
        try:
            tokens = self._tokens(reader, options["start"])
        except (TokenError, UnknownStream) as error:
            raise CommandError(f"--from: {error}", returncode=2) from error
        for one in resync_reader(reader, tokens, asked_by()):
            was = "no cursor" if one.was is None else _shown(one.was)
            if options["json"]:
                found = {"reader": reader, "stream": one.stream, "was": was, "now": _shown(one.now)}
                command.stdout.write(json.dumps(found))
            else:
                command.stdout.write(f"{reader} on {one.stream}: {was} -> {_shown(one.now)}")

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
