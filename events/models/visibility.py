"""Tables and views about visibility, besides the ranges: forgotten rooms, ignored users, and views for joins.

``RoomAccess`` and ``VisibleEvent`` are database views (``events.visibility.predicate_sql``). Import these models from
``events.models``.
"""

from __future__ import annotations

from django.db import models

from state.fields import IdentifierField

__all__ = ["ForgottenRoom", "IgnoredUser", "RoomAccess", "VisibleEvent"]


class ForgottenRoom(models.Model):
    """A room that a user left and then forgot. The user has the same access as if they had never been in the room.

    The row applies to the membership event that it names. If the user has a later membership event, the room is no
    longer forgotten.
    """

    pk = models.CompositePrimaryKey("user_id", "room_id")
    user_id = IdentifierField()
    room_id = IdentifierField()
    event_id = IdentifierField(help_text="the user's current membership event when the room was forgotten")

    class Meta:
        db_table = "events_forgottenroom"

    def __str__(self) -> str:
        return f"{self.user_id} {self.room_id}"


class IgnoredUser(models.Model):
    """A user (``ignored_user_id``) whose messages another user (``user_id``) is not shown.

    Each row is an entry of ``m.ignored_user_list`` in the account data of ``user_id``.
    """

    pk = models.CompositePrimaryKey("user_id", "ignored_user_id")
    user_id = IdentifierField()
    ignored_user_id = IdentifierField()

    class Meta:
        db_table = "events_ignoreduser"

    def __str__(self) -> str:
        return f"{self.user_id} ignores {self.ignored_user_id}"


class RoomAccess(models.Model):
    """A database view: the rooms that users with a membership may read now, and up to which position.

    Rooms that a user may not read have no row. Filter by user, by room, or by both.
    """

    pk = models.CompositePrimaryKey("user_id", "room_id")
    user_id = IdentifierField()
    room_id = IdentifierField()
    peeking = models.BooleanField(
        help_text="reads it as a world-readable room: neither joined, nor left without forgetting"
    )
    recorded = models.BooleanField(help_text="has a membership event in the room")
    cut = models.BigIntegerField(null=True, help_text="stream position of the own leave; nothing above it is seen")
    cut_depth = models.BigIntegerField(null=True, help_text="topological position of the own leave")

    class Meta:
        managed = False
        db_table = "events_roomaccess"

    def __str__(self) -> str:
        return f"{self.user_id} {self.room_id}"


class VisibleEvent(models.Model):
    """A database view: the events that users see. Each row is one event and one user who sees it.

    The view covers users with a membership in the current state of the room. Users without a membership may read
    world-readable rooms as well, but have no rows here. Retention is not applied, because it depends on the time and on
    settings (``events.visibility.access``). If ``redacted`` is true, serve the pruned form. Filter by user or by event,
    best also by room or by a range of positions, because PostgreSQL computes the rows when they are read.
    """

    pk = models.CompositePrimaryKey("user_id", "event_id")
    user_id = IdentifierField()
    room_id = IdentifierField()
    event_id = IdentifierField()
    stream_ordering = models.BigIntegerField()
    topological_ordering = models.BigIntegerField()
    type = IdentifierField()
    state_key = IdentifierField(null=True)
    sender = IdentifierField()
    redacted = models.BooleanField()

    class Meta:
        managed = False
        db_table = "events_visibleevent"

    def __str__(self) -> str:
        return f"{self.user_id} {self.event_id}"
