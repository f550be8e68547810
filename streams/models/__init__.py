"""Tables of the stream engine: writers and their positions, and readers.

Assumes PostgreSQL. Positions of backward streams are stored as negative numbers. Other services may import these
models, and should only read the tables.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.functions import Now

from streams.facts import Fact
from streams.models.epochs import Epoch
from streams.models.key_locks import KeyLock
from streams.models.notices import Notice
from streams.models.read_only import ReadOnlyQuerySet
from streams.models.readers import LowWaterMark, ParkedFact, PartCursor, ReaderResync, StoredCursor
from streams.models.recorded import RecordedFact, RecordedGap, RecordedPosition, RecordedServer
from streams.models.samples import Sample, StatusChange
from streams.models.workers import FederationAcknowledgement, SyncingUser, UserAddress, WireCount, WorkerConnection

__all__ = [
    "Epoch",
    "Fact",
    "FederationAcknowledgement",
    "KeyLock",
    "LowWaterMark",
    "Notice",
    "ParkedFact",
    "PartCursor",
    "Reader",
    "ReaderResync",
    "RecordedFact",
    "RecordedGap",
    "RecordedPosition",
    "RecordedServer",
    "Sample",
    "StatusChange",
    "StoredCursor",
    "StreamPosition",
    "SyncingUser",
    "UserAddress",
    "WireCount",
    "WorkerConnection",
    "WriterState",
]


class WriterState(models.TextChoices):
    """The state of a writer: retired if it wrote nothing for long, and active again with its next fact.

    A retired writer takes no part in the linear position. It has nothing open.
    """

    ACTIVE = "active", "active"
    RETIRED = "retired", "retired"


class StreamPositionQuerySet(ReadOnlyQuerySet["StreamPosition"]):
    """Queries of the writers' positions. The table has an index on (stream, instance_name)."""

    def of_stream(self, stream: str) -> StreamPositionQuerySet:
        """Returns the stream's writers that are not retired."""
        return self.filter(stream=stream).exclude(state="retired")

    def vector(self, stream: str) -> dict[str, int]:
        """Returns ``{writer: position}`` without retired writers.

        All facts of a writer up to its position can be read.
        """
        return dict(self.of_stream(stream).values_list("instance_name", "position"))

    def linear(self, stream: str) -> int | None:
        """Returns the position up to which the facts of all writers can be read; null if the stream has no active writer."""
        return min(self.vector(stream).values(), default=None)


class StreamPosition(models.Model):
    """The stored position of one writer of one stream: every fact of the writer up to ``position`` is complete.

    The looker stores it after the commit of the facts that it covers (``streams.reading.position_store``). A process that
    reads a position first and the table of facts second sees all facts of that writer up to the position. A position never
    goes down. The linear position of a stream is the lowest position of its writers that are not retired.
    """

    stream = models.TextField()
    instance_name = models.TextField(help_text="name of the writer")
    position = models.BigIntegerField(help_text="largest ID up to which all facts of this writer are complete")
    last_write_position = models.BigIntegerField(null=True, help_text="ID of the last fact this writer really wrote")
    last_fact_at = models.DateTimeField(null=True, help_text="when its last fact was found")
    last_advance_at = models.DateTimeField(db_default=Now(), help_text="when the position last rose")
    generation = models.BigIntegerField(db_default=0, help_text="how often a stream in memory has begun anew")
    state = models.TextField(choices=WriterState.choices, db_default=WriterState.ACTIVE)
    facts_written = models.BigIntegerField(db_default=0, help_text="facts of this writer that were counted so far")
    updated_at = models.DateTimeField(db_default=Now())

    objects = models.Manager()
    read = StreamPositionQuerySet.as_manager()

    class Meta:
        db_table = "streams_streamposition"
        constraints = [
            models.UniqueConstraint(fields=["stream", "instance_name"], name="streams_streamposition_writer"),
        ]
        ordering = ["stream", "instance_name"]
        permissions = [
            ("end_holder", "Can end transactions that hold a stream back"),
        ]

    def __str__(self) -> str:
        return f"{self.stream} {self.instance_name} {self.position}"


class Reader(models.Model):
    """A reader and its positions: a connection to a replication server, a follower, or a Spark query.

    ``positions`` is ``{stream: {writer: position}}``. For a connection, these are the positions that were *sent* to its
    client. For followers of this program, these are the positions that the follower has *handled*.
    """

    class Kind(models.TextChoices):
        """The type of a reader."""

        CONNECTION = "connection", "connection"
        FOLLOWER = "follower", "follower"
        SPARK = "spark", "Spark"

    key = models.TextField(primary_key=True, help_text="unique per connection or named reader")
    name = models.TextField(help_text="what the reader calls itself")
    kind = models.TextField(choices=Kind.choices)
    served_by = models.TextField(db_default="", help_text="the replication server of a connection")
    address = models.TextField(db_default="")
    process_id = models.BigIntegerField(null=True)
    connected_at = models.DateTimeField(db_default=Now())
    heartbeat_at = models.DateTimeField(db_default=Now())
    positions = models.JSONField(default=dict)
    bytes_in = models.BigIntegerField(db_default=0)
    bytes_out = models.BigIntegerField(db_default=0)
    lines_in = models.BigIntegerField(db_default=0)
    lines_out = models.BigIntegerField(db_default=0)
    buffer_bytes = models.BigIntegerField(db_default=0)
    waiting_lines = models.BigIntegerField(db_default=0, help_text="lines that wait for the connection to take them")
    kernel_send_bytes = models.BigIntegerField(db_default=0, help_text="sent, and not acknowledged by the other host")
    kernel_read_bytes = models.BigIntegerField(db_default=0, help_text="received, and not read by us")
    queued = models.JSONField(default=dict, db_default={}, help_text="stream -> rows received and not handled yet")
    rights = models.JSONField(
        null=True, help_text="what its certificate may do and how often it was refused; null: no rule limits it"
    )
    closed_at = models.DateTimeField(null=True)
    close_reason = models.TextField(db_default="")
    error = models.TextField(db_default="", help_text="what stopped it; empty: it runs, or ended in order")
    disconnect_asked_by = models.TextField(
        db_default="", help_text="who wants the connection ended; its server does it"
    )

    class Meta:
        db_table = "streams_reader"
        ordering = ["kind", "name", "key"]
        permissions = [("disconnect_reader", "Can disconnect readers")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


if not TYPE_CHECKING:  # else no wrong name in an import from here would be found

    def __getattr__(name: str) -> Any:
        """Returns a model that belonged to this module before it moved to the app ``streams.catalog``."""
        catalog = import_module("streams.catalog.models") if name[:1].isupper() else None
        if name in getattr(catalog, "__all__", ()):
            return getattr(catalog, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
