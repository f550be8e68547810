"""The table of the live pipeline: counts of each room's events (``pipeline.live.statistics_table``)."""

from __future__ import annotations

from django.db import models

from state.fields import IdentifierField

__all__ = ["READER", "RoomStatistics"]

#: The named reader that keeps the table current.
READER = "pipeline statistics"


class RoomStatistics(models.Model):
    """The counts of a room's events. Each fact on the streams ``events`` and ``backfill`` counts once."""

    room_id = IdentifierField(primary_key=True)
    events = models.BigIntegerField(db_default=0, help_text="that came in on the stream events")
    messages = models.BigIntegerField(db_default=0, help_text="m.room.message and m.room.encrypted among them")
    state_events = models.BigIntegerField(db_default=0, help_text="state events among them")
    rejected = models.BigIntegerField(db_default=0, help_text="rejected ones among them")
    history = models.BigIntegerField(db_default=0, help_text="events that came in on the stream backfill")
    last_position = models.BigIntegerField(db_default=0, help_text="position of the newest in the stream events")
    last_event_at = models.DateTimeField(null=True, help_text="when that came in")

    class Meta:
        db_table = "pipeline_roomstatistics"
        verbose_name_plural = "room statistics"

    def __str__(self) -> str:
        return f"{self.room_id}: {self.events}"
