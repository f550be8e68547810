"""The base of our ``manage.py`` commands: a help text with examples, and common exit statuses.

Every command derives from `SiteCommand` and lists its ``examples``. A test parses each example with the command's own
parser. Other tests check that all commands follow the same rules (``tests/unit/streams/runtime/test_command_line.py``).
"""

from __future__ import annotations

import getpass
import os
import select
import socket
import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, ClassVar, cast

from django.core.management.base import (
    BaseCommand,
    CommandParser,
    DjangoHelpFormatter,
    OutputWrapper,
    SystemCheckError,
)
from django.dispatch import Signal

from streams.runtime import systemd
from streams.runtime.output import output_written
from streams.runtime.text import inert_text, safe_text

#: The last line of every command's help.
EXIT_STATUS = "exit status: 0 all well; 1 found or left something wrong; 2 unusable arguments"
#: The tag of our own system checks. Commands that show no page run these alone: Django's import all pages.
SITE_CHECKS = "site"
#: Sent before a command begins to run as a service.
service_begins = Signal()

_WIDE = 10_000  # the width if the output is not a terminal: no text is cut or folded
_WIDEST_EXAMPLE = 64  # the description of a longer example is printed on the next line


class HelpFormatter(DjangoHelpFormatter):
    """A help formatter that lists our options before Django's.

    A text that contains no line break is wrapped. A text with line breaks is printed unchanged.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return RawDescriptionHelpFormatter._fill_text(self, text, width, indent)
        return super()._fill_text(text, width, indent)


class _Output(OutputWrapper):
    """A command's output. Names and errors in it come from others, and must not steer the terminal.

    A text with a ``style_func`` is the command's or Django's own, and may have colours.
    """

    def write(self, msg: str = "", style_func: Any = None, ending: str | None = None) -> None:  # type: ignore[override]
        super().write(msg if style_func else inert_text(msg), style_func, ending)


class SiteCommand(BaseCommand):
    """A command whose ``--help`` ends with examples and the meaning of its exit status.

    Whatever it writes on ``stdout`` and ``stderr``, and its errors, are safe to show on a terminal.
    """

    #: Pairs of the arguments after ``manage.py`` and a description.
    examples: ClassVar[tuple[tuple[str, str], ...]] = ()
    #: The class of the command's outputs.
    output: ClassVar[type[OutputWrapper]] = _Output

    @property
    def stdout(self) -> OutputWrapper:
        return self._stdout

    @stdout.setter
    def stdout(self, given: Any) -> None:
        self._stdout = self.output(given._out, given.ending)

    @property
    def stderr(self) -> OutputWrapper:
        return self._stderr

    @stderr.setter
    def stderr(self, given: Any) -> None:
        self._stderr = self.output(given._out, given.ending)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("epilog", self.epilog())
        kwargs.setdefault("formatter_class", HelpFormatter)
        return super().create_parser(prog_name, subcommand, **kwargs)

    def epilog(self) -> str:
        """Returns the end of the help: the examples, one per line, and the meaning of the exit status."""
        examples = self.help_examples()
        widest = max((len(typed) for typed, _ in examples if len(typed) <= _WIDEST_EXAMPLE), default=0)
        lines = [line for typed, does in examples for line in _example(typed, does, widest)]
        return "\n".join(["examples:", *lines, "", EXIT_STATUS])

    def help_examples(self) -> Sequence[tuple[str, str]]:
        """Returns the examples for the help: pairs of the arguments after ``manage.py`` and a description."""
        return self.examples

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return False

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Executes the command as Django does.

        If the command is a service, sends the signal ``service_begins`` first.
        """
        if self.is_service(options):
            service_begins.send(type(self))
        return super().execute(*args, **options)

    def check(self, *args: Any, **options: Any) -> None:
        """Runs the system checks as Django does. If a check fails, the exit status is 2, as for an unusable setting."""
        try:
            super().check(*args, **options)
        except SystemCheckError as error:
            error.returncode = 2
            raise

    def run_from_argv(self, argv: list[str]) -> None:
        """Runs the command as Django does, but refuses arguments that are not UTF-8.

        Such arguments could not be stored in a column or a file, nor sent in a message. If no process reads the
        command's output any more, the command ends without a traceback.
        """
        self._called_from_command_line = True  # so that an error ends the process, as in Django's
        for word in argv[2:]:
            try:
                word.encode()
            except UnicodeEncodeError:
                self.create_parser(argv[0], argv[1]).error(f"{word!r} is no UTF-8. Check the encoding of the terminal.")
        with output_written():
            super().run_from_argv(argv)

    def announce_ready(self, line: str) -> None:
        """Announces on standard output, and to the service manager, that the process is ready."""
        self.stdout.write(line)
        self.stdout.flush()
        systemd.notify(systemd.READY, f"STATUS={line}")

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Prints a table on standard output. Text in brackets is not treated as markup.

        With rich, on a terminal, long words are folded. Without rich, the columns are aligned.
        """
        lines = [[safe_text(_cell(value), None) for value in row] for row in rows]
        try:  # Most commands print no table, and rich is a twentieth of their start.
            from rich.console import Console  # noqa: PLC0415
            from rich.table import Table  # noqa: PLC0415
            from rich.text import Text  # noqa: PLC0415
        except ModuleNotFoundError:  # the engine alone: rich comes with the extras ``site`` and ``spark``
            widths = [max(map(len, cells)) for cells in zip(columns, *lines, strict=True)]
            for line in (columns, *lines):
                self.stdout.write("  ".join(map(str.ljust, line, widths)).rstrip())
            return
        table = Table()
        for name in columns:
            table.add_column(name, overflow="fold")
        for line in lines:
            table.add_row(*map(Text, line))
        width = None if self.stdout.isatty() else _WIDE
        Console(file=cast("IO[str]", self.stdout._out), width=width).print(table)  # with its colours


def asked_by() -> str:
    """Returns the user and host that run this command. The text is stored in records of the command's changes."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"


def read_line(prompt: str = "") -> str:
    """Writes ``prompt`` on standard output, and returns the next line of standard input, or nothing at its end."""
    if prompt:
        sys.stdout.write(prompt)
        sys.stdout.flush()
    # Not a read that waits: Python runs the handler of an interrupt that came just before it when the read is over.
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        pass
    return sys.stdin.readline()


def option_of(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns ``read`` as argparse needs it, which alone would hide the text of a ``ValueError``."""

    def check(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return check


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _example(typed: str, does: str, widest: int) -> list[str]:
    if len(typed) > widest:
        return [f"  manage.py {typed}", f"      {does}"]
    return [f"  manage.py {typed:<{widest}}   {does}"]
