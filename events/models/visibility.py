"""Tables and views of who sees what, beside the ranges: forgotten rooms, ignored users, and the views to join.

``RoomAccess`` and ``VisibleEvent`` are views (``events.visibility.predicate_sql``), never written. The models are found in
``events.models``.
"""

from __future__ import annotations

from django.db import models

from state.fields import IdentifierField

__all__ = ["ForgottenRoom", "IgnoredUser", "RoomAccess", "VisibleEvent"]


class ForgottenRoom(models.Model):
    """A user has forgotten a room that they had left: they read it as if they never had been there.

    It holds for the membership event that it names: with every later one the room is no longer forgotten.
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
    """A user is shown no messages of another: ``m.ignored_user_list`` of their account data."""

    pk = models.CompositePrimaryKey("user_id", "ignored_user_id")
    user_id = IdentifierField()
    ignored_user_id = IdentifierField()

    class Meta:
        db_table = "events_ignoreduser"

    def __str__(self) -> str:
        return f"{self.user_id} ignores {self.ignored_user_id}"


class RoomAccess(models.Model):
    """View: a user with a membership may read a room now, and how far. Rooms that the user may not read have no row.

    Ask with a user, a room, or both.
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
    """View: a user sees an event, row by row, for all who have a membership in the room's current state.

    ``redacted``: serve the pruned form. Ask with a user or an event, best with a room or a stretch of positions too: the view is
    worked out when it is read. Retention is not in it, because it depends on the time and on settings
    (``events.visibility.access``), nor are strangers in world-readable rooms; everything else is.
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
