"""The command line of operations: commands whose further words name what is done, such as ``purge history``.

The options are the arguments of the operation. Before it deletes, a command with the option ``--yes`` says at a terminal
what would be deleted, and asks. Without a terminal it goes on, and says so, because a script could not answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error as DjangoError

from streams.db import driver
from streams.errors import SiteError
from streams.jobs.arguments import DRY_RUN, YES, Argument, add_options
from streams.jobs.errors import UnknownKind, UnusableArguments
from streams.jobs.folders import any_folder
from streams.jobs.operation import Operation, Words, discover, operations
from streams.jobs.run import run_job
from streams.runtime.command_line import EXIT_STATUS, HelpFormatter, SiteCommand, read_line
from streams.runtime.text import safe_text

__all__ = [
    "CommandLine",
    "FormerName",
    "JobLine",
    "VerbCommand",
    "as_command",
    "as_command_errors",
    "command_line",
    "command_lines",
    "confirm_deletion",
]


@contextmanager
def as_command_errors() -> Iterator[None]:
    """Converts errors of the block to ``CommandError``, with exit status 2 for unusable arguments and 1 for other errors.

    An ``OSError`` is not converted. ``manage.py`` handles this error: for example, a command ends without a message if
    the process that reads the command's output closes the pipe.
    """
    try:
        yield
    except (UnusableArguments, UnknownKind) as error:
        raise CommandError(str(error), returncode=2) from error
    except SiteError as error:
        raise CommandError(str(error), returncode=1) from error
    except (DjangoError, driver.DatabaseError) as error:
        raise CommandError(driver.explain(error), returncode=1) from error


@contextmanager
def as_command() -> Iterator[None]:
    """Runs the block with the rights of the process's user: jobs may name any folder.

    Converts errors to ``CommandError`` like ``as_command_errors``. Also converts an ``OSError``, with exit status 1.
    """
    with as_command_errors(), any_folder():
        try:
            yield
        except OSError as error:
            raise CommandError(str(error), returncode=1) from error


def confirm_deletion(command: BaseCommand, foresee: Callable[[], Iterable[str]], *, is_sure: bool) -> None:
    """Returns if the data may be deleted. ``foresee`` does the dry run, and returns its lines; ``is_sure`` is ``--yes``.

    Raises ``CommandError`` if the answer is not yes.
    """
    if is_sure:
        return
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        command.stderr.write(
            "Deleting without a question, because standard input is no terminal; --yes omits this line."
        )
        return
    for line in foresee():
        command.stderr.write(line)
    command.stderr.write("It cannot be taken back. Delete it? [y/N] ", ending="")
    command.stderr.flush()
    if read_line().strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was deleted.", returncode=1)


# --- what words of the command line stand for -------------------------------------------------------------------------


class CommandLine:
    """What some words of the command line do, such as ``purge stream``. Those of operations are ``JobLine``."""

    words = ""
    about = ""
    """The help, in sentences."""
    example = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Does it. Writes the outcome to the command's stdout and progress to its stderr. Raises ``CommandError``."""


class JobLine(CommandLine):
    """Runs the job of an operation in this process, and prints its summary."""

    def __init__(self, operation: Operation, declared: Words) -> None:
        self.operation = operation
        self.words, self.about, self.example = declared.words, declared.about, declared.example
        self._declared = declared

    @property
    def arguments(self) -> Sequence[Argument]:
        """The arguments that these words take."""
        return [argument for argument in self.operation.arguments if argument.name not in self._declared.without]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_options(parser, self.arguments)

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        with as_command():
            done = self.operation.at_once(options)
        if done is not None:
            command.stdout.write(done)
            return
        with as_command():
            checked = self.operation.check(self.given(options))
            if YES in self.arguments and not checked[DRY_RUN]:
                confirm_deletion(command, lambda: self._foresee(command, checked), is_sure=options["yes"])
            summary = self._perform(command, checked, options)
        figures = {name: value for name, value in summary.items() if name != "words"}  # the sentence is for people only
        lines = [json.dumps(figures, ensure_ascii=False)] if options["json"] else self.operation.lines(summary)
        for line in lines:
            command.stdout.write(line)
        with as_command():
            self.operation.check_outcome(checked, summary)

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of the job from the command's options. Raises ``CommandError``."""
        for argument in self.arguments:
            if argument.instead_of and bool(options[argument.instead_of]) == options[argument.name]:
                raise CommandError(f"Name {argument.instead_of}, or give --{argument.name}.", returncode=2)
        names = [argument.name for argument in self.arguments if argument.stored and argument.typed is not None]
        return {**self._declared.given, **{name: None if options[name] == [] else options[name] for name in names}}

    def _perform(
        self, command: BaseCommand, checked: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        stream: Any = command.stderr._out  # the file itself: its last line is overwritten, which moves the cursor
        work, resume = self.operation.work_for(options), options.get("resume", False)
        return run_job(self.operation.name, checked, stream=stream, resume=resume, work=work)

    def _foresee(self, command: BaseCommand, checked: Mapping[str, Any]) -> Iterable[str]:
        foreseen = self._perform(command, {**checked, DRY_RUN: True}, {})
        if "words" not in foreseen:
            return self.operation.lines(foreseen)
        about = foreseen["folder"] if "folder" in foreseen else foreseen["room_id"]
        return [f"{safe_text(about, None)}: {foreseen['words']}"]


_others: dict[str, CommandLine] = {}
_Class = TypeVar("_Class", bound=type[CommandLine])


def command_line(declared: _Class) -> _Class:
    """Makes known what is no operation but has words of its own: a decorator of its class, in a package ``operations``."""
    _others[declared.words] = declared()
    return declared


def command_lines(verb: str = "") -> dict[str, CommandLine]:
    """Returns ``{words: what they do}``, sorted; with ``verb`` only those that begin with this word, which is left out."""
    discover()
    lines = [JobLine(known, declared) for known in operations().values() for declared in known.commands]
    found = _others | {line.words: line for line in lines}
    start = f"{verb} " if verb else ""
    return {words.removeprefix(start): found[words] for words in sorted(found) if words.startswith(start)}


# --- commands ---------------------------------------------------------------------------------------------------------


class VerbCommand(SiteCommand):
    """A command whose second word names what is done: ``purge``, ``resync`` and ``room``."""

    verb: ClassVar[str]

    def add_arguments(self, parser: CommandParser) -> None:
        choices = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
        for words, line in command_lines(self.verb).items():
            chosen = choices.add_parser(
                words,
                help=line.about,
                description=line.about,
                epilog=f"example: manage.py {line.example}\n\n{EXIT_STATUS}",
                formatter_class=HelpFormatter,
            )
            line.add_arguments(chosen)

    def help_examples(self) -> Sequence[tuple[str, str]]:
        """Returns a pair (example, first sentence of the help) for each line."""
        lines = command_lines(self.verb).values()
        return [(line.example, line.about.partition(". ")[0].rstrip(".")) for line in lines]

    def handle(self, *args: Any, **options: Any) -> None:
        with as_command_errors():
            command_lines(self.verb)[options["what"]].run(self, options)


class FormerName(SiteCommand):
    """A command that has another name now: ``words``. The former name works for one version, and says so."""

    words: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.former = type(self).__module__.rpartition(".")[2]
        self.help = f"The former name of manage.py {self.words}, which goes with the next version."

    def add_arguments(self, parser: CommandParser) -> None:
        command_lines()[self.words].add_arguments(parser)

    def help_examples(self) -> Sequence[tuple[str, str]]:
        return [(self.former + command_lines()[self.words].example.removeprefix(self.words), f"as {self.words} does")]

    def handle(self, *args: Any, **options: Any) -> None:
        self.stderr.write(
            f"manage.py {self.former} is manage.py {self.words} now; the former name goes with the next version."
        )
        with as_command_errors():
            command_lines()[self.words].run(self, options)
