"""``purge stream``: trims a stream's old facts. It runs at once, also on a site that has no jobs."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streams import registry
from streams.conf import stream_settings
from streams.core.watermarks import trim_mark
from streams.db import driver
from streams.errors import UnknownStream
from streams.jobs.arguments import YES
from streams.jobs.command import CommandLine, command_line, confirm_deletion
from streams.maintenance.trim import Keep, Trimmed, TrimPlan, TrimRequest, plan_trim, trim
from streams.runtime.amounts import duration, keep_amount, parse_duration
from streams.runtime.command_line import option_of

PROGRESS_SECONDS = 1.0


@command_line
class PurgeStream(CommandLine):
    """Trims a stream, or says what would be deleted."""

    words = "purge stream"
    about = (
        "Delete a stream's old facts, never beyond the slowest registered reader. Safe beside writers and readers; may be "
        "interrupted and repeated."
    )
    example = "purge stream caches --keep 7d --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("stream", metavar="NAME", help="the stream")
        parser.add_argument(
            "--keep", required=True, type=option_of(keep_amount), metavar="DURATION|COUNT",
            help="what stays: facts received within a duration (30s, 15m, 12h, 7d, 4w), or the newest COUNT facts",
        )  # fmt: skip
        parser.add_argument(
            "--horizon", type=option_of(parse_duration), default=timedelta(days=7), metavar="DURATION",
            help="a reader not seen for so long does not hold the trimming back (default: 7d)",
        )  # fmt: skip
        parser.add_argument(
            "--ignore-reader", action="append", default=[], metavar="NAME", help="a reader that does not count"
        )
        parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
        parser.add_argument("--yes", action="store_true", help=YES.help)
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
    plan = plan_trim(cursor, request)
    done, first, last = Trimmed(position=plan.mark), 0.0, 0.0
    for done in trim(cursor, request):
        now = time.monotonic()
        first, last = first or now, last or now  # so that the wait before the first batch does not lower the rate
        if now - last >= PROGRESS_SECONDS:
            last, rate = now, done.rows / (now - first)
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
            "ignored": [r.reader for r in self.left.obstacles if r.ignored],
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
        for reader in self.left.obstacles:
            if reader.ignored:
                yield f"not counted: {reader.reader} at {reader.position} ({reader.ignored})"
