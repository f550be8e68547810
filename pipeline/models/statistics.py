"""Tables of the live statistics: rooms, the server by hour and day, rooms and users by day.

Counts (events, messages, …) grow with each fact on the streams ``events`` and ``backfill``. Each fact counts once. A
purge does not lower the counts. Figures (members, state entries, sizes) are read from the tables of rooms. They
describe the time when they were read. A day is a day in UTC, by the time at which events were received.
``pipeline.statistics.update`` writes the tables, and ``pipeline.statistics.history`` bounds them.
"""

from __future__ import annotations

from django.db import models

from state.fields import IdentifierField

__all__ = ["RoomDay", "RoomStatistics", "ServerStatistics", "UserDay"]


class RoomStatistics(models.Model):
    """The counts of a room's incoming events and of its members."""

    room_id = IdentifierField(primary_key=True)
    events = models.BigIntegerField(db_default=0, help_text="that came in on the stream events")
    messages = models.BigIntegerField(db_default=0, help_text="m.room.message and m.room.encrypted among them")
    state_events = models.BigIntegerField(db_default=0, help_text="state events among them")
    rejected = models.BigIntegerField(db_default=0, help_text="rejected ones among them")
    history = models.BigIntegerField(db_default=0, help_text="events that came in on the stream backfill")
    last_position = models.BigIntegerField(db_default=0, help_text="position of the newest in the stream events")
    last_event_at = models.DateTimeField(null=True, help_text="when that came in")
    joined = models.IntegerField(db_default=0)
    joined_local = models.IntegerField(db_default=0, help_text="users of this server among the joined")
    invited = models.IntegerField(db_default=0)
    knocking = models.IntegerField(db_default=0)
    left = models.IntegerField(db_default=0)
    banned = models.IntegerField(db_default=0)
    state_entries = models.IntegerField(db_default=0, help_text="entries of the current state")
    figures_at = models.DateTimeField(null=True, help_text="when members and state were counted")

    class Meta:
        db_table = "pipeline_roomstatistics"
        verbose_name_plural = "room statistics"

    def __str__(self) -> str:
        return f"{self.room_id}: {self.events}"


class ServerStatistics(models.Model):
    """The counts of all rooms together in one hour or day, and the figures that were last read in this hour or day.

    The figures are null if no figures were read in the hour or day.
    """

    pk = models.CompositePrimaryKey("step_seconds", "at")
    step_seconds = models.IntegerField(help_text="3600: an hour; 86400: a day")
    at = models.DateTimeField(help_text="when it began")
    events = models.BigIntegerField(db_default=0)
    messages = models.BigIntegerField(db_default=0)
    state_events = models.BigIntegerField(db_default=0)
    rejected = models.BigIntegerField(db_default=0)
    history = models.BigIntegerField(db_default=0)
    active_rooms = models.IntegerField(db_default=0, help_text="rooms with new events; of days only")
    active_users = models.IntegerField(db_default=0, help_text="senders of accepted events; of days only")
    active_local_users = models.IntegerField(db_default=0, help_text="users of this server among them; of days only")
    monthly_local_users = models.IntegerField(null=True, help_text="users of this server active in 30 days")
    rooms = models.IntegerField(null=True)
    joined = models.BigIntegerField(null=True, help_text="memberships: a user counts in each room")
    joined_local = models.BigIntegerField(null=True, help_text="memberships of users of this server")
    state_entries = models.BigIntegerField(null=True, help_text="entries of the current state of all rooms")
    state_groups = models.BigIntegerField(null=True, help_text="as PostgreSQL estimates")
    state_deltas = models.BigIntegerField(null=True, help_text="rows of all state groups, as PostgreSQL estimates")
    state_bytes = models.BigIntegerField(null=True, help_text="tables and indexes of the state groups")
    event_bytes = models.BigIntegerField(null=True, help_text="tables and indexes of the events")
    database_bytes = models.BigIntegerField(null=True)

    class Meta:
        db_table = "pipeline_serverstatistics"
        verbose_name_plural = "server statistics"

    def __str__(self) -> str:
        return f"{self.at} {self.events}"


class RoomDay(models.Model):
    """The counts of a room on one day. For the newest days, all rooms have a row. For earlier days, only the busiest rooms do."""

    pk = models.CompositePrimaryKey("day", "room_id")
    day = models.DateField()
    room_id = IdentifierField()
    events = models.BigIntegerField()
    history = models.BigIntegerField()

    class Meta:
        db_table = "pipeline_roomday"

    def __str__(self) -> str:
        return f"{self.day} {self.room_id}: {self.events}"


class UserDay(models.Model):
    """A user who sent an accepted event on a day. Active users are counted from these rows."""

    pk = models.CompositePrimaryKey("day", "user_id")
    day = models.DateField()
    user_id = IdentifierField()
    is_local = models.BooleanField(help_text="of this server")

    class Meta:
        db_table = "pipeline_userday"

    def __str__(self) -> str:
        return f"{self.day} {self.user_id}"
