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
from streams.models.read_only import ReadOnlyQuerySet
from streams.models.readers import LowWaterMark, ParkedFact, ReaderResync, StoredCursor
from streams.models.recorded import RecordedFact, RecordedGap, RecordedPosition, RecordedServer
from streams.models.samples import Sample, StatusChange
from streams.models.workers import FederationAcknowledgement, SyncingUser, UserAddress, WireCount, WorkerConnection

__all__ = [
    "Epoch",
    "Fact",
    "FederationAcknowledgement",
    "Instance",
    "KeyLock",
    "LowWaterMark",
    "ParkedFact",
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
    "WriterResolution",
    "WriterState",
]


class WriterState(models.TextChoices):
    """The state of a writer: ``active -> draining -> retired``, and back to active with a new process.

    A draining writer gets no new reservations. Like an active writer, it holds back the linear position until its open
    reservations are complete.
    """

    ACTIVE = "active", "active"
    DRAINING = "draining", "draining"
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

    def pending(self) -> StreamPositionQuerySet:
        """Returns the writers that have reserved IDs which are not complete.

        The writer with the oldest such ID comes first.
        """
        return self.filter(pending_facts__gt=0).order_by("oldest_pending_at")


class StreamPosition(models.Model):
    """The position of one writer of one stream: every ID that the writer reserved up to ``position`` is complete.

    The row is written after the commit of the facts that it covers. A process that reads a position first and the table
    of facts second sees all facts of that writer up to the position. The position never goes down while its writer
    lives. The linear position of a stream is the lowest position of its writers that are not retired.
    """

    stream = models.TextField()
    instance_name = models.TextField(help_text="name of the writer")
    position = models.BigIntegerField(help_text="largest ID up to which all facts of this writer are complete")
    last_write_position = models.BigIntegerField(null=True, help_text="ID of the last fact this writer really wrote")
    last_advance_at = models.DateTimeField(db_default=Now(), help_text="when the position last rose")
    generation = models.BigIntegerField(db_default=0, help_text="how often a stream in memory has begun anew")
    state = models.TextField(choices=WriterState.choices, db_default=WriterState.ACTIVE)
    pending_facts = models.IntegerField(db_default=0, help_text="IDs reserved and not complete")
    oldest_pending_id = models.BigIntegerField(null=True)
    oldest_pending_at = models.DateTimeField(null=True, help_text="when the oldest pending ID was reserved")
    oldest_pending_transaction = models.BigIntegerField(null=True, help_text="PostgreSQL's number of its transaction")
    facts_written = models.BigIntegerField(db_default=0, help_text="completed by a commit, in all lives of the writer")
    facts_rolled_back = models.BigIntegerField(db_default=0, help_text="completed by a rollback")
    facts_resolved = models.BigIntegerField(db_default=0, help_text="last seen pending when the writer was proven dead")
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
            ("retire_writer", "Can retire writers"),
            ("end_writer", "Can end what a writer holds open"),
            ("end_lock_holder", "Can end sessions whose locks a writer waits for"),
        ]

    def __str__(self) -> str:
        return f"{self.stream} {self.instance_name} {self.position}"


class Instance(models.Model):
    """An instance name, and the process that holds it now: its host, its start and its heartbeat.

    ``lease`` counts the processes that have held the name. An append under an older lease is refused.
    """

    name = models.TextField(primary_key=True)
    lease = models.BigIntegerField(db_default=0)
    state = models.TextField(choices=WriterState.choices, db_default=WriterState.ACTIVE)
    host = models.TextField(db_default="")
    process_id = models.BigIntegerField(null=True)
    lock_backend_pid = models.IntegerField(null=True, help_text="server process that holds the writer lock")
    version = models.TextField(db_default="")
    command = models.TextField(db_default="", help_text="what the process was started as")
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    drain_asked_by = models.TextField(db_default="", help_text="who asked it to leave its streams; empty: nobody")

    class Meta:
        db_table = "streams_instance"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


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


class WriterResolution(models.Model):
    """A record of one action on a writer: it was proven dead, it was asked to leave, or its transactions were ended."""

    class Action(models.TextChoices):
        """The actions that another process or an operator takes on a writer."""

        RESOLVED = "resolved", "proven dead"
        DRAINED = "drained", "left its streams when asked"
        ABORTED = "aborted", "its transactions were ended"

    stream = models.TextField()
    instance_name = models.TextField()
    from_position = models.BigIntegerField()
    to_position = models.BigIntegerField()
    action = models.TextField(choices=Action.choices, db_default=Action.RESOLVED)
    evidence = models.TextField(help_text="what proved that no transaction of the writer is open, or what was ended")
    resolved_by = models.TextField(help_text="instance that did it, or who asked for it")
    resolved_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_writerresolution"
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.stream} {self.instance_name} {self.from_position} -> {self.to_position}"


if not TYPE_CHECKING:  # else no wrong name in an import from here would be found

    def __getattr__(name: str) -> Any:
        """Returns a model that belonged to this module before it moved to the app ``streams.catalog``."""
        catalog = import_module("streams.catalog.models") if name[:1].isupper() else None
        if name in getattr(catalog, "__all__", ()):
            return getattr(catalog, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
