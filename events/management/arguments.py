"""Event IDs on a command line: given as arguments, or read from standard input if the argument is ``-``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from django.core.management.base import CommandParser


def add_event_ids(parser: CommandParser) -> None:
    parser.add_argument("event_ids", nargs="+", metavar="EVENT_ID", help="event IDs; - reads them from standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object a line in place of a table")


def asked_event_ids(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the IDs in the order of the arguments. Blank lines of standard input are skipped."""
    for argument in arguments:
        if argument == "-":
            yield from (line.strip() for line in sys.stdin if line.strip())
        else:
            yield argument
