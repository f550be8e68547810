"""Defines the changes of the whole site that the history records (pure): outages of the database, and new versions.

They are rows of ``streams.models.StatusChange`` without stream, writer and reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from replsite.status.words import Severity
from streams.runtime.amounts import duration

__all__ = ["AWAY", "BACK", "VERSION", "SiteChange", "outage", "restart", "version_change"]

AWAY = "database away"
BACK = "database back"
RESTARTED = "database restarted"
VERSION = "version "
"""The first characters of a status word that names a version."""


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A change of the whole site."""

    at: datetime
    was: str
    word: str
    severity: Severity
    sentence: str


def outage(begin: datetime, end: datetime) -> list[SiteChange]:
    """Returns the two changes that record an outage of the database: its begin and its end."""
    lasted = duration((end - begin).total_seconds())
    return [
        SiteChange(
            begin, "", AWAY, Severity.WRONG, f"It could not be reached for {lasted}. No figures are known of that."
        ),
        SiteChange(end, AWAY, BACK, Severity.FINE, f"It could not be reached for {lasted}."),
    ]


def restart(at: datetime) -> SiteChange:
    """Returns the change that records a restart of the database server that was too short to be seen as an outage."""
    return SiteChange(at, "", RESTARTED, Severity.NOTE, "Its server was started at this time.")


def version_change(at: datetime, was: str, version: str) -> SiteChange | None:
    """Returns the change to ``version`` of the program, or None if this version was recorded last.

    ``was`` is the status word that was recorded last for a version, or empty.
    """
    word = f"{VERSION}{version}"
    if was == word:
        return None
    sentence = (
        f"The serving processes run it after {was}."
        if was
        else "The serving processes run it; none is recorded before."
    )
    return SiteChange(at, was, word, Severity.FINE, sentence)
