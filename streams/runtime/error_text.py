"""An error as a line that is kept: bounded, printable in a table's cell, and without secrets (pure but for the settings).

What is stored travels further than a log: onto pages, into JSON and into alerts.
"""

from __future__ import annotations

from django.conf import settings

from streams.errors import StreamError
from streams.runtime.log_format import Cleaner

__all__ = ["LONGEST", "error_text", "without_secrets"]

LONGEST = 500


def error_text(error: BaseException) -> str:
    """The error in one line: its type, but for errors of ours, and what it says."""
    said = " ".join(str(error).split()).replace("\0", "\ufffd")
    text = said if isinstance(error, StreamError) and said else f"{type(error).__name__}: {said}".rstrip(": ")
    return without_secrets(text)[:LONGEST]


def without_secrets(text: str) -> str:
    """The text with the site's secrets, passwords in addresses and what is called one blotted out."""
    names = ("SECRET_KEY", "REPLSITE_REPLICATION_SECRET")
    secrets = [str(getattr(settings, name, "") or "") for name in names]
    secrets += [str(database.get("PASSWORD") or "") for database in settings.DATABASES.values()]
    return Cleaner("", secrets).blotted(text)
