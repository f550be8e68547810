"""Tables of named readers: stored cursors, dead letters, low-water marks, and cursors that were set by hand."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

__all__ = ["LowWaterMark", "ParkedFact", "PartCursor", "ReaderResync", "StoredCursor"]


class StoredCursor(models.Model):
    """The position up to which a named reader has handled a stream.

    The cursor moves in the same transaction as the effects of the handler. ``base`` and ``entries`` are a vector token:
    all facts up to ``base`` were handled, and the facts of each writer in ``entries`` up to its entry. ``lease`` counts
    the processes that have held the reader's name. A process that lost the name cannot move the cursor.

    The fields ``retry_…`` are the last request of an operator to retry dead letters. The reader's process gets the
    request with its heartbeat, and stores the result of the retry.
    """

    reader = models.TextField()
    stream = models.TextField()
    base = models.BigIntegerField()
    entries = models.JSONField(default=dict, help_text="writer -> position, where above the base")
    epoch = models.TextField(db_default="", help_text="life of the database that the cursor counts in")
    lease = models.BigIntegerField(db_default=0)
    facts_handled = models.BigIntegerField(db_default=0)
    facts_parked = models.BigIntegerField(db_default=0)
    host = models.TextField(db_default="")
    process_id = models.BigIntegerField(null=True)
    moved_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now(), help_text="last sign of life of the reader's process")
    ended_at = models.DateTimeField(
        null=True, help_text="when the reader's process let it go; null: it runs, or was killed"
    )
    error = models.TextField(db_default="", help_text="what stopped the reader here, until its cursor moves again")
    retry_asked_by = models.TextField(db_default="", help_text="who asked last to retry dead letters")
    retry_asked_at = models.DateTimeField(null=True, help_text="when that was; null: never")
    retry_tokens = models.JSONField(null=True, help_text="tokens of the dead letters to retry; null: all")
    retry_began_at = models.DateTimeField(null=True, help_text="when the reader's process began it; null: it waits")
    retry_result = models.TextField(db_default="", help_text="what came of it; empty: not done yet")

    class Meta:
        db_table = "streams_storedcursor"
        constraints = [models.UniqueConstraint(fields=["reader", "stream"], name="streams_storedcursor_reader")]
        ordering = ["reader", "stream"]
        permissions = [
            ("forget_reader", "Can forget readers and their cursors"),
            ("resync_reader", "Can set readers to the present positions"),
        ]

    def __str__(self) -> str:
        return f"{self.reader} {self.stream} {self.base}"


class PartCursor(models.Model):
    """The position up to which processes that share a reader by key have handled the facts of one part of the keys.

    A handler with ``by`` has 64 of them. A process locks their rows in the transaction in which it handles facts. The
    reader's ``StoredCursor`` is at the lowest of them.
    """

    reader = models.TextField()
    stream = models.TextField()
    by_field = models.TextField(help_text="field by whose values facts are shared")
    part = models.SmallIntegerField(help_text="hash of the key, from 0 to 63")
    position = models.BigIntegerField()
    apart_upto = models.BigIntegerField(
        null=True, help_text="facts up to here are handled one by one, as the handler failed on some together"
    )
    attempts = models.IntegerField(db_default=0, help_text="attempts at the next fact that failed")
    retry_at = models.DateTimeField(null=True, help_text="when the next attempt is due")
    facts_handled = models.BigIntegerField(db_default=0)
    facts_parked = models.BigIntegerField(db_default=0)
    moved_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_partcursor"
        constraints = [models.UniqueConstraint(fields=["reader", "stream", "part"], name="streams_partcursor_part")]
        ordering = ["reader", "stream", "part"]

    def __str__(self) -> str:
        return f"{self.reader} {self.stream} {self.part} {self.position}"


class ParkedFact(models.Model):
    """A dead letter: a fact on which a reader's handler failed, put aside so that the reader could go on.

    If processes share the stream by key, it holds the rows of one key.
    """

    reader = models.TextField()
    stream = models.TextField()
    token = models.BigIntegerField()
    instance_name = models.TextField(help_text="writer")
    key = models.TextField(db_default="", help_text="the fact's key, if processes share the stream by key")
    part = models.SmallIntegerField(null=True, help_text="part of the key")
    rows = models.JSONField(help_text="the fact's rows as they travel")
    error = models.TextField(help_text="the last error in one line")
    traceback = models.TextField()
    attempts = models.IntegerField()
    parked_at = models.DateTimeField(db_default=Now())
    tried_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_parkedfact"
        constraints = [
            models.UniqueConstraint(fields=["reader", "stream", "token", "key"], name="streams_parkedfact_fact"),
        ]
        indexes = [models.Index(fields=["reader", "stream", "key"], name="streams_parkedfact_key")]
        ordering = ["reader", "stream", "token"]
        permissions = [("retry_parked", "Can retry dead letters"), ("drop_parked", "Can drop dead letters")]

    def __str__(self) -> str:
        return f"{self.reader} {self.stream} {self.token}"


class LowWaterMark(models.Model):
    """The low-water mark of a stream: facts up to ``position`` may have been trimmed.

    ``writers`` holds for each writer its highest trimmed fact. If a reader's cursor for a writer is lower than this
    fact, the reader has lost facts of that writer, and must be set to a new position. If no cursor of a reader is
    lower, the reader has lost no fact.
    """

    stream = models.TextField(primary_key=True)
    position = models.BigIntegerField(db_default=0)
    writers = models.JSONField(default=dict, help_text="writer -> its highest fact that was trimmed")
    rows_deleted = models.BigIntegerField(db_default=0)
    trimmed_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_lowwatermark"
        ordering = ["stream"]

    def __str__(self) -> str:
        return f"{self.stream} {self.position}"


class ReaderResync(models.Model):
    """A record that a reader's cursor was set by hand: the old position, the new position, and the user who did it."""

    reader = models.TextField()
    stream = models.TextField()
    from_base = models.BigIntegerField(null=True, help_text="null: it had no cursor")
    from_entries = models.JSONField(default=dict)
    to_base = models.BigIntegerField()
    to_entries = models.JSONField(default=dict)
    resynced_by = models.TextField()
    resynced_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_readerresync"
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.reader} {self.stream} {self.from_base} -> {self.to_base}"
