"""Tables of per-user feeds. A feed lists stream positions for one user of this server.

At these positions are the newest events that may be new to the user. A feed is only a hint: it lists rooms and
positions to examine, and every row may be deleted. ``events.sync.feeds`` reads feeds, and ``pipeline.feeds.write``
writes them. Import these models from ``events.models``.
"""

from __future__ import annotations

from django.db import models

from state.fields import IdentifierField

__all__ = ["Feed", "FeedEntry", "FeedPosition"]


class Feed(models.Model):
    """The length of a user's feed, and the position above which the feed is complete.

    All of the user's events above ``complete_from`` are listed, up to the position in ``FeedPosition``. For a token
    below ``complete_from`` the feed is not used, and the rooms are queried.
    """

    user_id = IdentifierField(primary_key=True)
    complete_from = models.BigIntegerField(help_text="stream position above which the list is complete")
    entries = models.IntegerField(help_text="length of the list")

    class Meta:
        db_table = "events_feed"

    def __str__(self) -> str:
        return self.user_id


class FeedEntry(models.Model):
    """A stream position in a room that may have something new for the user.

    The row does not name an event. Code that reads the row uses the event that has this position at that time.
    """

    pk = models.CompositePrimaryKey("user_id", "stream_ordering")
    user_id = IdentifierField()
    stream_ordering = models.BigIntegerField()
    room_id = IdentifierField()

    class Meta:
        db_table = "events_feedentry"

    def __str__(self) -> str:
        return f"{self.user_id} {self.stream_ordering}"


class FeedPosition(models.Model):
    """The position up to which all feeds are written.

    The table has a single row. It is updated in the transaction that writes the feeds.
    """

    name = IdentifierField(primary_key=True, help_text="the reader that writes feeds")
    position = models.BigIntegerField(help_text="stream position up to which feeds list what is new")

    class Meta:
        db_table = "events_feedposition"

    def __str__(self) -> str:
        return f"{self.name} {self.position}"
