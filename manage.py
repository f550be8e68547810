#!/usr/bin/env python
"""Django's command line for the replsite site."""

import asyncio
import os
import sys
from contextlib import suppress

from django.core.management import execute_from_command_line
from django.db.utils import OperationalError


def main() -> None:
    """Run the command named on the command line; a database that cannot be reached is one line, not a traceback."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    if sys.argv[1:2] in (["serve"], ["runreplication"]):
        _take_the_fast_event_loop()
    try:
        execute_from_command_line(sys.argv)
    except OperationalError as error:
        if "--traceback" in sys.argv:
            raise
        sys.exit(f"error: the database cannot be used: {str(error).strip()}")


def _take_the_fast_event_loop() -> None:
    """Servers only, and here: daphne makes its reactor, for ever, when Django imports the installed apps."""
    with suppress(ImportError):  # everything works without it, at twice the cost
        import uvloop  # noqa: PLC0415 - optional

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


if __name__ == "__main__":
    main()
