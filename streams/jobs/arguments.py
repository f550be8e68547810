"""Declares the arguments of jobs. Each argument is declared once.

The options of commands, the checks of jobs and the forms in the admin all follow from these declarations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from itertools import groupby
from typing import Any

from streams.jobs.errors import UnusableArguments
from streams.runtime.moments import FORMS, moment_ms, moment_of

__all__ = [
    "DRY_RUN",
    "JSON",
    "YES",
    "Argument",
    "OneOf",
    "Type",
    "add_options",
    "dry_run",
]

#: The argument that makes a job a dry run. No form has a field for it: the page that queues the job sets it.
DRY_RUN = "dry_run"
_LATEST = 2**63 - 1


class Type(Enum):
    """The type of an argument. The type determines how a value is checked, the command's option and the form's field."""

    TEXT = auto()
    LINES = auto()
    """A list of texts. In a form each line is one text."""
    NUMBER = auto()
    WHOLE = auto()
    FLAG = auto()
    CHOICE = auto()
    CHOICES = auto()
    MOMENT = auto()
    """Milliseconds since 1970, entered as date and time in UTC."""
    DAY = auto()
    WHETHER = auto()
    """True, false, or None. If it is None, the job decides."""


@dataclass(frozen=True, eq=False)
class OneOf:
    """A group of a command's options of which a user may give only one.

    The arguments of a group share one ``OneOf`` object, and follow one another in the list of arguments.
    """

    required: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a job, of the command that runs the job, or of both."""

    name: str
    type: Type
    help: str
    """The help text of a command's option."""
    _: KW_ONLY
    in_form: str = ""
    """The help text in a form, if it differs from ``help``."""
    required: bool = False
    choices: tuple[str, ...] = ()
    bounds: tuple[int, int] = (0, 0)
    default: Any = None
    """The default value, or a function that returns the default value."""
    must: str = ""
    """The words after "must be" in the error for an unusable value. If it is empty, the words of the argument's type are
    used."""
    check: Callable[[str, Any], Any] | None = None
    """A function that replaces the check of the type. Takes name and value. Returns the value for the job, or raises an
    error."""
    parse: Callable[[str], Any] | None = None
    """What the command's parser makes of the text of the option, if not what follows from the type."""
    is_privileged: bool = False
    """True if only a user who may carry out jobs may give a value, whatever else the job does."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """HTML attributes of the form's field."""
    instead_of: str = ""
    """For a flag such as ``--all``: the name of the argument that must be given if the flag is not, and only then."""
    omitted: bool = False
    """True if a value of None is left out of the job's arguments."""
    stored: bool = True
    """False if only the command takes the argument, and the job's row does not store it."""
    typed: str | None = ""
    """The form on the command line: ``ROOM`` is positional, ``--room ROOM`` an option. If it is empty, the option has the
    argument's name. If it is None, the command does not take the argument."""
    one_of: OneOf | None = None

    def value(self, given: Mapping[str, Any]) -> Any:
        """Returns the checked value of this argument in ``given``. If ``given`` has no value, returns the default.

        Raises ``UnusableArguments``.
        """
        value = given.get(self.name)
        if value is None and callable(self.default):
            value = self.default()
        elif value is None and not self.required:
            return False if self.type is Type.FLAG else self.default
        return self.check(self.name, value) if self.check is not None else _CHECKS.get(self.type, _checked)(self, value)

    def refusal(self, value: Any, must: str) -> UnusableArguments:
        """Returns the error for an unusable value. The error's text says what the value must be."""
        return UnusableArguments(f"{self.name} must be {self.must or f'{must}, not {value!r:.100}'}.")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Declares the argument on a parser, as an option or as a positional argument."""
        typed = self.typed or f"--{self.name.replace('_', '-')}"
        option, _, metavar = typed.partition(" ") if typed.startswith("--") else ("", "", typed)
        how: dict[str, Any] = dict(_OPTIONS.get(self.type, {}))
        if self.parse is not None:
            how["type"] = self.parse
        if self.type in (Type.LINES, Type.CHOICES):
            how = {"action": "append"} if option else {"nargs": "+" if self.required else "*"}
        if self.type in (Type.NUMBER, Type.WHOLE):
            how["default"] = self.default
        if metavar:
            how["metavar"] = metavar
        if option:
            how["dest"] = self.name
        parser.add_argument(option or self.name, help=self.help, **how)


def add_options(parser: argparse.ArgumentParser, arguments: Iterable[Argument]) -> None:
    """Declares on ``parser`` those of the arguments that a command takes, in the same order."""
    for one_of, some in groupby((arg for arg in arguments if arg.typed is not None), key=lambda arg: arg.one_of):
        place = parser if one_of is None else parser.add_mutually_exclusive_group(required=one_of.required)
        for arg in some:
            arg.add_to(place)


_OPTIONS: Mapping[Type, Mapping[str, Any]] = {
    Type.NUMBER: {"type": float},
    Type.WHOLE: {"type": int},
    Type.FLAG: {"action": "store_true"},
    Type.WHETHER: {"action": argparse.BooleanOptionalAction, "default": None},
}


# --- checks -----------------------------------------------------------------------------------------------------------


def _checked(arg: Argument, value: Any) -> Any:
    match arg.type:
        case Type.TEXT:
            fits, must = isinstance(value, str) and bool(value or not arg.required), "text"
        case Type.LINES:
            fits, must = _are_texts(value) and bool(value or not arg.required), "a list of texts"
        case Type.NUMBER | Type.WHOLE:
            least, most = arg.bounds
            kinds = int if arg.type is Type.WHOLE else int | float
            fits = isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most
            must = f"a number from {least:,} to {most:,}"
        case Type.CHOICE:
            fits, must = isinstance(value, str) and value in arg.choices, f"one of {', '.join(arg.choices)}"
        case Type.CHOICES:
            fits = _are_texts(value) and bool(value) and set(value) <= set(arg.choices)
            must = f"some of {', '.join(arg.choices)}"
        case _:  # FLAG and WHETHER: the text "false" is refused, because it would count as true
            fits, must = isinstance(value, bool), "true or false"
    if not fits:
        raise arg.refusal(value, must)
    return list(dict.fromkeys(value)) if arg.type is Type.CHOICES else value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _moment(arg: Argument, value: Any) -> int:
    # An age is subtracted once, before the job is stored. So a dry run and the job that carries it out use the same
    # time.
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LATEST:
        return value
    try:
        return moment_ms(value if isinstance(value, str) else "", time.time_ns() // 1_000_000)
    except ValueError:
        raise arg.refusal(value, FORMS) from None


def _day(arg: Argument, value: Any) -> str:
    # An age is subtracted at once, so that the day stays the same if the job begins later.
    try:
        if not isinstance(value, str) or ":" in value:
            raise ValueError
        found = moment_of(value, time.time_ns() // 1_000_000)
    except ValueError:
        raise arg.refusal(value, "a day such as 2026-01-31, or an age such as 30d") from None
    return found.date().isoformat()


_CHECKS: Mapping[Type, Callable[[Argument, Any], Any]] = {Type.MOMENT: _moment, Type.DAY: _day}


# --- what several jobs have -------------------------------------------------------------------------------------------

YES = Argument("yes", Type.FLAG, "do not ask before it deletes; at a terminal it does", stored=False)
JSON = Argument("json", Type.FLAG, "the outcome as one JSON object", stored=False)


def dry_run(text: str) -> Argument:
    """Returns the argument ``dry_run``, for a kind of job that has a dry run. ``text`` is the help text of the option."""
    return Argument(DRY_RUN, Type.FLAG, text)
