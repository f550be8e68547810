"""Sessions in the database, as Django's own (``SESSION_ENGINE``), that look for no key which Django never made.

A cookie may hold anything, also NUL, which PostgreSQL takes in no text: a made-up one was an error with its trace in the log.
"""

from __future__ import annotations

import string

from django.contrib.sessions.backends import db

__all__ = ["SessionStore"]

_LETTERS = frozenset(string.ascii_lowercase + string.digits)


class SessionStore(db.SessionStore):
    """Django's, with letters and digits in keys only."""

    def __init__(self, session_key: str | None = None) -> None:
        super().__init__(session_key if session_key and _LETTERS.issuperset(session_key) else None)
