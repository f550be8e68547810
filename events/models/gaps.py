"""The gaps in timelines of rooms. Each gap is below an event that arrived while earlier events were missing."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from state.fields import IdentifierField

__all__ = ["TimelineGap"]


class TimelineGap(models.Model):
    """The stream position of an event that was the first to refer to events that were not stored.

    A sync from before this position to beyond it is ``limited``, and shows only what arrived with the event or after
    it. The row stays when the missing events are backfilled. Backfilled events are not new to any client, so clients
    that have crossed the gap have to request them.
    """

    room_id = IdentifierField()
    stream_ordering = models.BigIntegerField(help_text="position of the event above the gap")
    instance_name = models.TextField(help_text="writer of that event")

    class Meta:
        db_table = "events_timelinegap"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["room_id", "stream_ordering"], name="events_timelinegap_place"),
        ]

    def __str__(self) -> str:
        return f"{self.room_id} below {self.stream_ordering}"
