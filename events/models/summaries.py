"""One narrow row for each room, by which lists of rooms are sorted and searched without reading the rooms' events.

Triggers on the tables of rooms, events and current state write the rows, in the transaction that changes the room
(``migrations/events/0014_room_summaries.py``). So the rows are right whichever program changes a room: persist, import,
purge, restore or repair. An ordinary message updates one row and none of its indexes: no index has a column that every
message changes. ``active_on`` and ``size`` are indexed in place of ``active_at`` and ``events``, and change rarely. A
list sorts by the coarse column first, with its index. Rows with equal coarse values are sorted by the exact column.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Lower

__all__ = ["RoomSummary"]


class RoomSummary(models.Model):
    """The name and the figures of a room."""

    room = models.OneToOneField(
        "events.Room",
        models.DO_NOTHING,
        primary_key=True,
        db_constraint=False,
        related_name="summary",
        help_text="the room; its ID is the key",
    )
    name = models.TextField(null=True, help_text="of m.room.name; null: none, or redacted")
    alias = models.TextField(null=True, help_text="of m.room.canonical_alias; null: none, or redacted")
    words = models.TextField(help_text="name, alias and room ID in lower case, to be searched")
    events = models.BigIntegerField(db_default=0, help_text="stored events, with any verdict")
    size = models.SmallIntegerField(db_default=0, help_text="grows with the logarithm of events")
    joined = models.IntegerField(db_default=0, help_text="members with membership join")
    invited = models.IntegerField(db_default=0, help_text="members with membership invite")
    active_at = models.DateTimeField(
        help_text="when the newest accepted event was sent, or received if that is earlier; 1970: no such event"
    )
    active_on = models.DateField(help_text="the day of active_at in UTC")

    class Meta:
        db_table = "events_roomsummary"
        verbose_name_plural = "room summaries"
        indexes: ClassVar = [
            models.Index(fields=["active_on"], name="events_roomsummary_active"),
            models.Index(fields=["size"], name="events_roomsummary_size"),
            models.Index(fields=["joined"], name="events_roomsummary_joined"),
            models.Index(Lower("name"), name="events_roomsummary_name"),
        ]

    def __str__(self) -> str:
        return str(self.name or self.alias or self.room_id)  # a page's text escapes itself
