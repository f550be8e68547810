"""The model field for Matrix identifiers: event, room and user IDs, event types, state keys.

Its own class, because Django would give every unique text column a second index for LIKE queries, which byte order
makes superfluous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["IdentifierField"]


class IdentifierField(models.TextField):
    """Text of at most 255 bytes without NUL (whoever parses sees to that), compared by code point."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("db_collation", "C")
        super().__init__(*args, **kwargs)

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """The same type as ``text`` under a name for which Django makes no LIKE index."""
        return "character varying"
