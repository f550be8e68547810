"""The past in two bounded tables: positions of streams and readers in steps of time, and changes of status.

Written by one process of the site (``replsite.history.sampler``), which also removes old rows.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

__all__ = ["Sample", "StatusChange"]


class Sample(models.Model):
    """A stream (``reader`` empty), or a reader on it, in one step of time: its last position and its worst values.

    ``waiting`` and ``seconds``: of a stream the pending facts and the age of the oldest one, of a reader its lag.
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
    """A change of status of a writer, or of a reader on a stream, for better or worse."""

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
        return f"{self.stream} {self.writer or self.reader}: {self.was} -> {self.word}"
