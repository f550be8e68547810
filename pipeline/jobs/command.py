"""Jobs on the command line: a command, or a subject of ``purge`` or ``resync``, whose options are the arguments of its kind."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from events.errors import EventsError
from pipeline.errors import PipelineError, UnknownKind, UnusableArguments
from pipeline.jobs.arguments import ALL_ROOMS, DRY_RUN, YES, Argument, add_options
from pipeline.jobs.folders import any_folder
from pipeline.jobs.run import JobKind, run_job
from streams.db import driver
from streams.errors import StreamError
from streams.runtime.command_line import SiteCommand
from streams.runtime.text import printable

__all__ = ["JobCommand", "JobSubject", "as_command", "told_errors"]


@contextmanager
def told_errors() -> Iterator[None]:
    """Raises ``CommandError`` for what goes wrong in the block: 2 for unusable arguments, 1 for all else.

    Output that cannot be written is no such thing: a reader of it that is content ends the command quietly.
    """
    try:
        yield
    except (UnusableArguments, UnknownKind) as error:
        raise CommandError(str(error), returncode=2) from error
    except (EventsError, PipelineError, StreamError) as error:
        raise CommandError(str(error), returncode=1) from error
    except (DatabaseError, driver.DatabaseError) as error:
        raise CommandError(driver.explain(error), returncode=1) from error


@contextmanager
def as_command() -> Iterator[None]:
    """The same for a job that runs as the command's user: it may name any folder, and a file may be what goes wrong."""
    with told_errors(), any_folder():
        try:
            yield
        except OSError as error:
            raise CommandError(str(error), returncode=1) from error


class JobSubject:
    """Runs a job and tells its summary; asks before it deletes, where the kind has the option ``--yes``."""

    def __init__(self, kind: JobKind, help: str = "") -> None:
        self.kind = kind
        self.help = help

    @property
    def arguments(self) -> Sequence[Argument]:
        """What the command takes."""
        return self.kind.arguments or ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        add_options(parser, self.arguments)

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job."""
        given = self.given(options)
        with as_command():
            checked = self.kind.check(given)
            if YES in self.arguments:
                self._ask(command, checked, is_sure=options["yes"])
            summary = self.perform(command, checked, options)
        figures = {name: value for name, value in summary.items() if name != "words"}  # alike before and after
        lines = [json.dumps(figures, ensure_ascii=False)] if options["json"] else self.kind.lines(summary)
        for line in lines:
            command.stdout.write(line)
        with as_command():
            self.kind.judge(checked, summary)

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the job's arguments that were typed."""
        if ALL_ROOMS in self.arguments and bool(options["rooms"]) == options["all"]:
            raise CommandError("Name rooms, or give --all.", returncode=2)
        names = [one.name for one in self.arguments if one.stored and one.typed is not None]
        return {name: None if options[name] == [] else options[name] for name in names}

    def perform(
        self, command: BaseCommand, checked: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Runs the job; returns its summary."""
        stream: Any = command.stderr  # a file in all that is used
        return run_job(self.kind.name, checked, stream=stream, resume=options.get("resume", False))

    def _ask(self, command: BaseCommand, checked: Mapping[str, Any], *, is_sure: bool) -> None:
        """Say what would go and ask whether it shall; raises ``CommandError`` unless it shall. A script cannot answer."""
        if is_sure or checked[DRY_RUN]:
            return
        if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
            command.stderr.write(
                "Deleting without a question, since standard input is no terminal; with --yes this is not said."
            )
            return
        foreseen = self.perform(command, {**checked, DRY_RUN: True}, {})
        command.stderr.write(f"{printable(foreseen['room_id'])}: {foreseen['words']}")
        command.stderr.write("It cannot be taken back. Delete it? [y/N] ", ending="")
        command.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was deleted.", returncode=1)


class JobCommand(SiteCommand):
    """A command that runs a job, which its ``subject`` does."""

    subject: ClassVar[JobSubject]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        self.subject.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """As a job."""
        self.subject.run(self, options)
