"""Rooms that were deleted as a whole, with what must be remembered about them.

A trigger on ``events_room`` skips the insertion of a room that is still being deleted, or is blocked. The trigger does
so for every program that writes to the table. So the events of such a room are refused like those of an unknown room,
and an import quarantines them.
"""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from state.fields import IdentifierField

__all__ = ["PurgedRoom"]


class PurgedRoom(models.Model):
    """A room that ``purge room`` has deleted or is deleting. ``finished_at`` is null while the room is being deleted.

    Rows of the room from ``lowest_position`` to ``highest_position``, and state groups of the room up to
    ``highest_group``, are from before the purge.
    """

    room_id = IdentifierField(primary_key=True)
    began_at = models.DateTimeField(db_default=Now(), help_text="when the room was gone for everybody")
    finished_at = models.DateTimeField(null=True, help_text="when the last of its rows was deleted; null: not yet")
    asked_by = models.TextField(help_text="user, or user and host of the command")
    blocked = models.BooleanField(db_default=False, help_text="the room is not made again")
    lowest_position = models.BigIntegerField(help_text="lowest stream position of its events")
    highest_position = models.BigIntegerField(help_text="highest stream position of its events")
    highest_group = models.BigIntegerField(help_text="highest ID of its state groups")

    class Meta:
        db_table = "events_purgedroom"

    def __str__(self) -> str:
        return str(self.room_id)  # a page's text escapes itself
