"""Defines the changes of the whole site that the history records (pure): outages of the database, and new versions.

They are rows of ``streams.models.StatusChange`` without stream, writer and reader.
"""

from __future__ import annotations

from datetime import datetime

from replsite.history.samples import Change
from replsite.status.words import Severity, Verdict
from streams.runtime.amounts import duration

AWAY = "database away"
BACK = "database back"
RESTARTED = "database restarted"
VERSION = "version "
"""The first characters of a status word that names a version."""


_SITE = ("", "", "")


def outage(begin: datetime, end: datetime) -> list[Change]:
    """Returns the two changes that record an outage of the database: its begin and its end."""
    text = f"It could not be reached for {duration((end - begin).total_seconds())}."
    away = Verdict(AWAY, Severity.WRONG, f"{text} No figures are known of that.")
    return [Change(_SITE, "", away, begin), Change(_SITE, AWAY, Verdict(BACK, Severity.FINE, text), end)]


def restart(at: datetime) -> Change:
    return Change(_SITE, "", Verdict(RESTARTED, Severity.NOTE, "Its server was started at this time."), at)


def version_change(was: str, version: str) -> Change | None:
    """Returns the change to ``version`` of the program, or None if this version was recorded last.

    ``was`` is the status word that was recorded last for a version, or empty.
    """
    word = f"{VERSION}{version}"
    if was == word:
        return None
    after = f" after {was}." if was else "; none is recorded before."
    return Change(_SITE, was, Verdict(word, Severity.FINE, f"The serving processes run it{after}"))
