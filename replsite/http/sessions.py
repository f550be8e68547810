"""Stores sessions in the database like Django (``SESSION_ENGINE``), but ignores keys that Django cannot have made.

A cookie may hold anything, including NUL, which PostgreSQL does not accept in text. Without this check a made-up cookie
causes an error with a traceback in the log.

Remembers keys that the database knew, so that requests with other cookies do not keep users out (``request_places``).
"""

from __future__ import annotations

import string
import threading
from typing import Any

from django.contrib.sessions.backends import db

from streams.core.bounded import BoundedDict

_LETTERS = frozenset(string.ascii_lowercase + string.digits)


class SessionStore(db.SessionStore):
    """Django's session store, limited to keys of letters and digits."""

    def __init__(self, session_key: str | None = None) -> None:
        super().__init__(session_key if session_key and _LETTERS.issuperset(session_key) else None)

    def load(self) -> dict[str, Any]:
        """Returns the content of the session. Without one of this key, forgets the key."""
        asked = self.session_key
        content: dict[str, Any] = super().load()
        _remember(asked, is_real=self.session_key is not None)
        return content

    def create(self) -> None:
        """Makes a new session, as after a login."""
        super().create()
        _remember(self.session_key, is_real=True)


_real: BoundedDict[str, None] = BoundedDict(10_000)
_guard = threading.Lock()


def is_real(key: str) -> bool:
    """Returns true if this process has found a session of this key in the database, and not missed it since."""
    return key in _real


def _remember(key: str | None, *, is_real: bool) -> None:
    with _guard:
        if key and is_real:
            _real.put(key, None)
        elif key:
            _real.pop(key, None)
