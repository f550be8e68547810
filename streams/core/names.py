"""Names of instances and patterns for them (pure).

In a pattern, ``{n}`` stands for a number, and ``{host}`` for the name of the machine.

A name travels as one field on the wire, so it holds no white space and no control character.
"""

from __future__ import annotations

import re

from streams.errors import BadInstanceName

LONGEST_NAME = 100
_NUMBER, _HOST = "{n}", "{host}"


def check_name(name: str) -> None:
    """Raises ``BadInstanceName`` (a ``ValueError``) unless the text can be an instance name or a pattern for such names."""
    if not isinstance(name, str):
        raise BadInstanceName(f"An instance name is a text such as 'web-{{n}}', not {type(name).__name__} {name!r}.")
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or any(c.isspace() for c in name):
        raise BadInstanceName(
            f"{name[:LONGEST_NAME]!r} cannot be an instance name: use 1 to {LONGEST_NAME} printable characters without blanks."
        )


def name_without_number(pattern: str) -> str:
    return pattern.replace(_NUMBER, "").strip("-_.:") or "server"


def matches_pattern(name: str, pattern: str) -> bool:
    """Returns true if the name equals the pattern, with any number and any name of a machine filled in."""
    wanted = re.escape(pattern).replace(re.escape(_NUMBER), "[0-9]+").replace(re.escape(_HOST), "[A-Za-z0-9_-]+")
    return re.fullmatch(wanted, name) is not None


def is_name_of_writer(name: str, pattern: str) -> bool:
    """Returns true if the name matches the pattern. The number may be missing, as writers are not numbered."""
    return matches_pattern(name, pattern) or matches_pattern(name, name_without_number(pattern))
