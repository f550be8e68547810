"""The model field for Matrix identifiers: event, room and user IDs, event types, state keys.

Django gives every unique text column a second index for LIKE queries. This field compares bytewise, so the unique index
serves LIKE queries as well. The field therefore avoids the second index.

Migrations have this field, also those of other projects. So its name, its arguments and its type in the database stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["IdentifierField"]


class IdentifierField(models.TextField):  # type: ignore[type-arg]  # generic in its stubs only
    """A field for text of at most 255 bytes without NUL, compared by code point.

    The field does not check the length, because the parser of events has checked it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("db_collation", "C")
        super().__init__(*args, **kwargs)

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Returns a synonym of ``text`` for which Django creates no LIKE index."""
        return "character varying"
