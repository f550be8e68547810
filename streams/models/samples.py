"""The site's recorded history in two bounded tables: sampled positions of streams and readers, and changes of status.

One process of the site (``replsite.history.sampler``) writes the tables and removes old rows.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

__all__ = ["Sample", "StatusChange"]


class Sample(models.Model):
    """A sample of a stream, or of a reader of this stream, over one interval of time.

    ``reader`` is empty for the stream itself. The sample holds the last position and the worst values of the interval.
    For a stream, ``waiting`` counts its open appends, and ``seconds`` is the age of the oldest of them. For a reader,
    ``waiting`` is its lag in facts, and ``seconds`` is its lag in seconds.
    """

    pk = models.CompositePrimaryKey("step_seconds", "stream", "reader", "at")
    step_seconds = models.IntegerField(help_text="length of the step")
    stream = models.TextField(db_collation="C")
    reader = models.TextField(db_collation="C", help_text="empty: the stream itself")
    at = models.DateTimeField(help_text="begin of the step")
    position = models.BigIntegerField(help_text="linear position at the end of the step")
    waiting = models.BigIntegerField(help_text="most facts that were pending, or not read")
    seconds = models.FloatField(help_text="greatest age of the oldest of these")
    severity = models.SmallIntegerField(help_text="0 fine, 1 note, 2 warning, 3 wrong")
    word = models.TextField(help_text="the worst status word")

    class Meta:
        db_table = "streams_sample"
        indexes: ClassVar = [models.Index(fields=["step_seconds", "at"], name="streams_sample_age")]

    def __str__(self) -> str:
        return f"{self.stream} {self.reader} {self.at:%Y-%m-%d %H:%M:%S}"


class StatusChange(models.Model):
    """A change of the status of a writer, or of a reader of a stream, for better or worse.

    A row without stream, writer and reader is about the whole site: an outage of the database, a new program version. A row with
    a stream only says that a looker moved its sequence forward, which somebody had set back.
    """

    at = models.DateTimeField(db_index=True)
    stream = models.TextField(db_collation="C")
    writer = models.TextField(db_collation="C", help_text="empty: it is about a reader")
    reader = models.TextField(db_collation="C", help_text="empty: it is about a writer")
    was = models.TextField(help_text="status word before; empty: not seen before")
    word = models.TextField()
    severity = models.SmallIntegerField(help_text="0 fine, 1 note, 2 warning, 3 wrong")
    sentence = models.TextField(help_text="what it means and what to do")

    class Meta:
        db_table = "streams_statuschange"
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["stream", "-id"], name="streams_statuschange_stream")]

    def __str__(self) -> str:
        return f"{self.stream} {self.writer or self.reader}: {self.was} -> {self.word}".lstrip(" :")
