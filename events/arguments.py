"""Checks the arguments of queries about stored rooms before the database is queried (pure).

Some strings cannot be stored: strings with a NUL or half a surrogate pair, and strings of more than 255 bytes. An ID of
this kind counts as unknown, not as an error. An argument that no query accepts (a limit of 0, a number for an ID)
raises ``InvalidQuery``.
"""

from __future__ import annotations

from collections.abc import Iterable

from events.errors import InvalidQuery
from events.format.parsing import IDENTIFIER_LIMIT_BYTES


def can_be_stored(value: object) -> bool:
    """Returns true if an identifier column can hold the value. Raises ``InvalidQuery`` if it is no string."""
    if not isinstance(value, str):  # the admin has texts with control characters in a class of their own
        raise InvalidQuery(f"{value!r:.100} is no identifier; give a string.")
    if "\0" in value:
        return False
    try:
        return len(value.encode()) <= IDENTIFIER_LIMIT_BYTES
    except UnicodeEncodeError:
        return False


def checked_ids(values: Iterable[str], most: int) -> list[str]:
    """Returns the IDs that can be stored, in the order given and without repetitions.

    Raises ``InvalidQuery`` if ``values`` is no list of strings, or has more than ``most`` IDs.
    """
    if isinstance(values, str | bytes):
        raise InvalidQuery(f"{values!r:.100} is one ID; give a list of them.")
    if not isinstance(values, Iterable):
        raise InvalidQuery(f"{values!r:.100} is no list of IDs.")
    found = list(dict.fromkeys(value for value in values if can_be_stored(value)))
    if len(found) > most:
        raise InvalidQuery(f"{len(found)} IDs are too many for one question; ask for at most {most} at once.")
    return found


def checked_limit(limit: int, most: int) -> int:
    """Returns ``limit``, but at most ``most``. Raises ``InvalidQuery`` if it is no whole number or below 1."""
    if type(limit) is not int or limit < 1:
        raise InvalidQuery(f"A limit of {limit!r:.100} is unusable; give a whole number from 1 to {most}.")
    return min(limit, most)
