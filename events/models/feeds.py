"""Tables of per-user feeds: a list of stream positions for each user of this server.

At these positions are the newest events that may be new to the user. A feed is never the truth. It only gives a reader
the rooms and positions to look at, and every row may be deleted (``events.sync.feeds`` reads, ``pipeline.feeds.write``
writes). Import these models from ``events.models``.
"""

from __future__ import annotations

from django.db import models

from state.fields import IdentifierField

__all__ = ["Feed", "FeedEntry", "FeedPosition"]


class Feed(models.Model):
    """A user's feed: its length, and from where it is complete.

    ``complete_from`` is the re-sync mark: all of the user's events above it are listed, up to the feeds' position. For an
    older token the rooms are queried instead.
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

    The row does not name the event: the one that has this position when the feed is read counts.
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
    """The position up to which all feeds are written: one row, updated in the transaction that writes them."""

    name = IdentifierField(primary_key=True, help_text="the reader that writes feeds")
    position = models.BigIntegerField(help_text="stream position up to which feeds list what is new")

    class Meta:
        db_table = "events_feedposition"

    def __str__(self) -> str:
        return f"{self.name} {self.position}"
