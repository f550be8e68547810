"""Event IDs on a command line: given there, or read from standard input where a ``-`` stands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from django.core.management.base import CommandParser

__all__ = ["add_event_ids", "asked_event_ids"]


def add_event_ids(parser: CommandParser) -> None:
    """Declare the IDs, and the form of the answers."""
    parser.add_argument("event_ids", nargs="+", metavar="EVENT_ID", help="event IDs; - reads them from standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object a line in place of a table")


def asked_event_ids(arguments: Sequence[str]) -> Iterator[str]:
    """The IDs in the order asked; blank lines of standard input are none."""
    for argument in arguments:
        if argument == "-":
            yield from (line.strip() for line in sys.stdin if line.strip())
        else:
            yield argument
