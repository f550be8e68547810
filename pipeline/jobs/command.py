"""Jobs on the command line: a job is a command, or a subject of the commands ``purge`` and ``resync``.

The options are the arguments of the kind of job.
"""

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

__all__ = ["JobCommand", "JobSubject", "as_command", "as_command_errors"]


@contextmanager
def as_command_errors() -> Iterator[None]:
    """Turns errors of the block into ``CommandError``, with status 2 for unusable arguments and 1 for the others.

    An ``OSError`` is not changed. ``manage.py`` handles it: a command ends quietly if the reader closes its output.
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
    """Turns errors of the block into ``CommandError`` like ``as_command_errors``, for jobs with the rights of the user.

    In the block a job may name any folder. ``OSError`` becomes a ``CommandError`` with status 1, too.
    """
    with as_command_errors(), any_folder():
        try:
            yield
        except OSError as error:
            raise CommandError(str(error), returncode=1) from error


class JobSubject:
    """A kind of job on the command line: it declares the options, runs the job and prints its summary.

    If the kind has the option ``--yes``, the command asks before it deletes.
    """

    def __init__(self, kind: JobKind, help: str = "") -> None:
        self.kind = kind
        self.help = help

    @property
    def arguments(self) -> Sequence[Argument]:
        """The arguments that the command takes."""
        return self.kind.arguments or ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_options(parser, self.arguments)

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Runs the job and prints its summary, as JSON if asked. Raises ``CommandError``."""
        given = self.given(options)
        with as_command():
            checked = self.kind.check(given)
            if YES in self.arguments:
                self._ask(command, checked, is_sure=options["yes"])
            summary = self.perform(command, checked, options)
        figures = {name: value for name, value in summary.items() if name != "words"}  # the sentence is for people only
        lines = [json.dumps(figures, ensure_ascii=False)] if options["json"] else self.kind.lines(summary)
        for line in lines:
            command.stdout.write(line)
        with as_command():
            self.kind.judge(checked, summary)

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of the job from the command's options.

        If the command has an option ``--all``, raises ``CommandError`` unless either rooms or ``--all`` are given.
        """
        if ALL_ROOMS in self.arguments and bool(options["rooms"]) == options["all"]:
            raise CommandError("Name rooms, or give --all.", returncode=2)
        names = [one.name for one in self.arguments if one.stored and one.typed is not None]
        return {name: None if options[name] == [] else options[name] for name in names}

    def perform(
        self, command: BaseCommand, checked: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Runs the job; returns its summary."""
        stream: Any = command.stderr  # Django's wrapper of a file; it has all that is used
        return run_job(self.kind.name, checked, stream=stream, resume=options.get("resume", False))

    def _ask(self, command: BaseCommand, checked: Mapping[str, Any], *, is_sure: bool) -> None:
        """Shows what would be deleted and asks for confirmation. Raises ``CommandError`` if the answer is no.

        Does not ask if standard input is no terminal, because a script could not answer.
        """
        if is_sure or checked[DRY_RUN]:
            return
        if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
            command.stderr.write(
                "Deleting without a question, because standard input is no terminal; --yes omits this line."
            )
            return
        foreseen = self.perform(command, {**checked, DRY_RUN: True}, {})
        command.stderr.write(f"{printable(foreseen['room_id'])}: {foreseen['words']}")
        command.stderr.write("It cannot be taken back. Delete it? [y/N] ", ending="")
        command.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was deleted.", returncode=1)


class JobCommand(SiteCommand):
    """A command that runs the job of its ``subject``."""

    subject: ClassVar[JobSubject]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declares the options of the subject."""
        self.subject.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self.subject.run(self, options)
