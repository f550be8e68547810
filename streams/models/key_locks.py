"""The table of key locks: rows that transactions lock in place of advisory locks.

Advisory locks would not be safe here. Every role that may connect can hold any advisory lock, and appends would wait
for that role.
"""

from __future__ import annotations

from django.db import models

__all__ = ["KeyLock"]


class KeyLock(models.Model):
    """A row that appends lock before they compare or delete facts of some keys.

    If the stream has a ``key``, an append compares the newest fact of the key. If the stream has ``newest_per``, an
    append deletes the older facts of the key. The row holds no other data. Appends insert the rows that are missing.
    """

    name = models.TextField(
        primary_key=True, help_text="table of the facts, and a number that a hash assigns to the key"
    )

    class Meta:
        db_table = "streams_keylock"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
