"""Decides when people are told that the site is wrong, or well again (pure).

A *spell* of trouble begins when the site is wrong, and is over when it was not wrong for ``well_after_seconds`` without a
break. People are told of a spell if the site is still, or again, wrong ``wrong_after_seconds`` after its beginning, and once
more when it is over. So a moment of trouble is no message, and a site that is wrong every few seconds gives two messages,
not hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass

WRONG, WELL = "wrong", "well"


@dataclass(slots=True)
class Spell:
    """The present spell of trouble. Times are those of the caller's monotonic clock."""

    wrong_after_seconds: float
    well_after_seconds: float
    _wrong_since: float | None = None
    _not_wrong_since: float | None = None

    def step(self, word: str, now: float, *, is_wrong: bool) -> str:
        """Returns ``WRONG`` or ``WELL`` if people are to be told so now, else an empty text.

        ``word`` is what they were told last; empty: nothing yet.
        """
        if is_wrong:
            self._not_wrong_since = None
            self._wrong_since = now if self._wrong_since is None else self._wrong_since
            is_due = word != WRONG and now - self._wrong_since >= self.wrong_after_seconds
            return WRONG if is_due else ""
        self._not_wrong_since = now if self._not_wrong_since is None else self._not_wrong_since
        if now - self._not_wrong_since < self.well_after_seconds:
            return ""
        self._wrong_since = None
        return WELL if word == WRONG else ""
