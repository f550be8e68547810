"""Stores sessions in the database like Django (``SESSION_ENGINE``), but ignores keys that Django cannot have made.

A cookie may hold anything, including NUL, which PostgreSQL does not accept in text. Without this check a made-up cookie
causes an error with a traceback in the log.
"""

from __future__ import annotations

import string

from django.contrib.sessions.backends import db

_LETTERS = frozenset(string.ascii_lowercase + string.digits)


class SessionStore(db.SessionStore):
    """Django's session store, limited to keys of letters and digits."""

    def __init__(self, session_key: str | None = None) -> None:
        super().__init__(session_key if session_key and _LETTERS.issuperset(session_key) else None)
