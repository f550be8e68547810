#!/usr/bin/env python
"""Django's command line for the replsite site."""

import asyncio
import errno
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db.utils import OperationalError, ProgrammingError
from environs import EnvError

_MISSING = ("42P01", "42703")  # PostgreSQL's codes for a table and for a column that does not exist


def main() -> None:
    """Run the command named on the command line; what is no mistake of ours is one line at most, not a traceback."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    gc.set_threshold(50_000, 20, 50)  # what is imported stays: to look for garbage in it took a fifth of every start
    if sys.stdout is None:  # started with a closed standard output
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the process
    if sys.argv[1:2] in (["serve"], ["runreplication"]):
        _take_the_fast_event_loop()
    with _output_written():
        _run()


def _run() -> None:
    try:
        execute_from_command_line(sys.argv)
    except OperationalError as error:
        if "--traceback" in sys.argv:
            raise
        from streams.db import driver  # noqa: PLC0415 - needs the settings

        _fail(f"error: {driver.explain(error)}")
    except ProgrammingError as error:
        if "--traceback" in sys.argv or getattr(error.__cause__, "pgcode", None) not in _MISSING:
            raise
        from streams.db.advice import about_missing_relation  # noqa: PLC0415 - needs the settings

        reason = str(error).strip().splitlines()[0]
        _fail(f"error: {reason}. {about_missing_relation(reason)}")
    except (ImproperlyConfigured, EnvError) as error:
        if "--traceback" in sys.argv:
            raise
        _fail(f"error: a setting cannot be used: {' '.join(str(error).split())}", 2)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(said: str, status: int = 1) -> NoReturn:
    """Say why at once: the output may turn out to be unwritable on the way out, and that error would take this one's place."""
    sys.stderr.write(f"{said}\n")
    sys.exit(status)


@contextmanager
def _output_written() -> Iterator[None]:
    """Writes what the command printed before Python ends.

    Python's buffer holds up to 8 kB. Flushed only by the interpreter's own end, output that cannot be written would make the exit
    status 120, with a complaint of the interpreter, whatever the command wanted to return.
    """
    try:
        try:
            yield
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        _throw_output_away()  # else Python complains again at the end
        sys.exit(1 if error.errno == errno.EPIPE else "error: the output cannot be written: the disk is full")


def _throw_output_away() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def _take_the_fast_event_loop() -> None:
    """Servers only, and here: daphne makes its reactor, for ever, when Django imports the installed apps."""
    with suppress(ImportError):  # everything works without it, at twice the cost
        import uvloop  # noqa: PLC0415 - optional

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


if __name__ == "__main__":
    main()
