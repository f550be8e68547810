"""Writes ``docs/reference/options.md`` from the commands' parsers: every command with its arguments, options and examples."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandParser

from streams.runtime.command_line import SiteCommand

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "reference" / "options.md"
#: Apps whose commands are ours.
ROOMS = ("replsite", "pipeline", "events", "state", "streams")
HEAD = """# Options of every command

Each command with its arguments, as `--help` shows them. Written by `script/generated_pages.py` from the code.
[Commands](commands.md) is the overview, with output and exit status.
"""


def page() -> str:
    """Returns the text of the page."""
    parts = [HEAD]
    for name, command in own_commands().items():
        parts.append(f"\n## {name}\n\n{_paragraph(command.help)}\n")
        if hasattr(command, "former"):  # its options are those of its present name
            continue
        parts.append(_tables(name, own_parser(command)))
        shown = "\n".join(f"manage.py {typed}\n{_wrapped(does, '    ')}" for typed, does in command.help_examples())
        parts.append(f"\n```text\n{shown}\n```\n")
    return "".join(parts)


def own_commands() -> dict[str, SiteCommand]:
    """Returns the commands of our apps by name, in the order of the names."""
    found = {name: load_command_class(app, name) for name, app in sorted(get_commands().items()) if app in ROOMS}
    return {name: command for name, command in found.items() if hasattr(command, "help_examples")}


def own_parser(command: SiteCommand) -> argparse.ArgumentParser:
    """Returns a parser with the command's own arguments, without those that Django adds to every command."""
    parser = CommandParser(prog="manage.py")
    command.add_arguments(parser)
    return parser


def _tables(typed: str, parser: argparse.ArgumentParser) -> str:
    parts = []
    if rows := [_row(action) for action in _own_actions(parser)]:
        parts.append("\n| argument | meaning |\n|---|---|\n" + "".join(rows))
    for name, sub in _subparsers(parser).items():
        parts.append(f"\n### {typed} {name}\n")
        if sub.description:
            parts.append(f"\n{_paragraph(sub.description)}\n")
        parts.append(_tables(f"{typed} {name}", sub))
    return "".join(parts)


def _own_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            yield action


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _row(action: argparse.Action) -> str:
    takes = action.nargs != 0
    value = str(action.metavar or "") or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        typed = f"[{value}…]" if action.nargs == "*" else f"{value}…" if action.nargs == "+" else value
    else:
        names = " / ".join(action.option_strings)
        typed = f"{names} {value}" if takes else names
    must = "; needed" if action.option_strings and action.required else ""
    escaped = typed.replace("|", "\\|")
    return f"| `{escaped}` | {_plain(_short((action.help or '') % {'default': action.default}))}{must} |\n"


def _short(text: str) -> str:
    """Returns the first sentence, and further ones up to 180 characters. Help texts of Django's own options are longer."""
    kept, *more = re.split(r"(?<=\.) ", " ".join(text.split()))
    for sentence in more:
        if len(kept) + len(sentence) > 180:
            break
        kept += f" {sentence}"
    return kept


def _paragraph(text: str | None) -> str:
    return _wrapped(_plain(text))


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 118, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _plain(text: str | None) -> str:
    """Returns a text as Markdown, with all markup escaped."""
    return re.sub(r"([|<>*\[\]])", r"\\\1", " ".join((text or "").split()))


def files() -> dict[Path, str]:
    """Returns the page."""
    return {PAGE: page()}
