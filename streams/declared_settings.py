"""Settings that are declared once: fields of a dataclass with default, bounds, and a sentence below them (pure).

What a site reads from its environment, what the system checks refuse, and ``docs/reference/settings.md`` follow from these
declarations. ``StreamSettings`` is the example. The Django setting of its field ``heartbeat_seconds`` is called
``REPLSITE_HEARTBEAT_SECONDS``, as is the environment variable, unless the declaration names another or none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

_Settings = TypeVar("_Settings")
_ON, _OFF = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


class BadSetting(Exception):
    """The text of an environment variable is no value of its setting."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a setting, beside its name, type and default."""

    above: float = -math.inf
    least: float = -math.inf
    most: float = math.inf
    unit: str = ""
    """For the page, if neither the name nor the type tells it."""
    variable: str | None = ""
    """The environment variable if it has another name. None: the value can be set in Django's settings only."""
    site: Any = None
    """The default of this program's own site, if it has another one than a project that installs the apps."""
    default_text: str = ""
    """The default in words, for the page."""
    read: Callable[[str], Any] | None = None
    """Parses the text of the variable, and raises ``ValueError``. Without it the type of the default decides."""
    former: str = ""
    """What the setting, and its variable, were called before. It counts where the new name is not set."""
    wanted: str = ""
    """What ``read`` takes, after the word *write*."""

    @property
    def allowed(self) -> str:
        """The bounds in words; empty if there are none."""
        words = [(f"more than {self.above:g}", self.above), (f"{self.least:,g} or more", self.least)]
        return " and ".join(
            text for text, bound in [*words, (f"at most {self.most:,}", self.most)] if abs(bound) < math.inf
        )


def setting(default: Any = MISSING, *, factory: Any = MISSING, is_secret: bool = False, **more: Any) -> Any:
    """Returns a dataclass field with a default or what makes it. ``more`` are the fields of ``Declared``.

    A secret is left out of the dataclass's ``repr``.
    """
    made = {"default": default} if factory is MISSING else {"default_factory": factory}
    return field(**made, repr=not is_secret, metadata={"declared": Declared(**more)})


def declared(settings: Any) -> Iterator[tuple[str, Field[Any], Declared]]:
    """Yields the name of each Django setting of the dataclass, its field, and its declaration."""
    for spec in fields(settings):
        yield f"REPLSITE_{spec.name.upper()}", spec, spec.metadata.get("declared", _PLAIN)


def from_django(kind: type[_Settings], settings: Any) -> _Settings:
    """Returns the values that Django's settings give, and the default of each setting that they do not have."""
    found = {}
    for name, spec, how in declared(kind):
        if given := next((each for each in (name, how.former) if each and hasattr(settings, each)), None):
            found[spec.name] = getattr(settings, given)
    return kind(**found)


def from_texts(kind: type[_Settings], texts: Mapping[str, str], **defaults: Any) -> _Settings:
    """Returns the values of a site with these environment variables. ``defaults`` take the place of declared ones.

    Raises ``BadSetting`` with the variable, its text, and what to write.
    """
    found = defaults
    for name, spec, how in declared(kind):
        variable = how.variable or name
        if how.former in texts and variable not in texts:
            variable = how.former
        if how.variable is not None and variable in texts:
            found[spec.name] = _parsed(variable, texts[variable], how, spec)
        elif how.site is not None:
            found.setdefault(spec.name, how.site)
    return kind(**found)


def as_django(settings: Any) -> dict[str, Any]:
    """Returns the Django settings for these values, but for those that Django's settings alone give."""
    return {name: getattr(settings, f.name) for name, f, how in declared(settings) if how.variable is not None}


def secrets_of(settings: Any) -> list[str]:
    return [str(value) for _, f, _ in declared(settings) if not f.repr and (value := getattr(settings, f.name))]


def out_of_bounds(settings: Any) -> Iterator[tuple[str, str]]:
    """Yields a sentence and a hint for each value that is not within its bounds. NaN and text are within none."""
    for name, spec, how in declared(settings):
        value = getattr(settings, spec.name)
        is_number = isinstance(value, int | float) and how.above < value and how.least <= value <= how.most
        if how.allowed and not is_number and not (value is None and "None" in str(spec.type)):
            yield (
                f"{name} is {value!r}; it must be {how.allowed}.",
                f"Its default is {spec.default}: docs/reference/settings.md.",
            )


def _parsed(variable: str, text: str, how: Declared, spec: Field[Any]) -> Any:
    default = spec.default_factory() if spec.default_factory is not MISSING else spec.default
    read, wanted = (how.read, how.wanted) if how.read else _READ[type(default)]
    try:
        return read(text)
    except json.JSONDecodeError as error:
        raise BadSetting(f"{variable} is {text!r}: write {wanted} ({error}).") from None
    except ValueError:
        raise BadSetting(f"{variable} is {text!r}: write {wanted}.") from None


def _switch(text: str) -> bool:
    if text.lower() not in _ON + _OFF:
        raise ValueError(text)
    return text.lower() in _ON


def _number(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(text)
    return found


_PLAIN = Declared()
#: Type of a default -> what parses the text of its variable, and what this takes.
_READ: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (_switch, "on or off"),
    int: (int, "a whole number"),
    float: (_number, "a number"),
    str: (str, "text"),
    tuple: (lambda text: text.split(",") if text else [], "words with commas between them"),
    dict: (json.loads, "JSON"),
    type(Path()): (lambda text: Path(text).absolute(), "a folder"),
}
