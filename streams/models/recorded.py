"""Tables of recorded foreign servers (``manage.py follow … --record NAME``): writers' positions, rows and gaps.

Only ``streams.replication.recording.recorder`` writes these tables. A foreign writer of a stream in memory begins again
at 0 whenever its process is restarted. So each *life* of such a writer is stored as a writer of its own (``master``,
then ``master~2``). The tokens of a stored writer therefore ascend, and none occurs twice.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now

from streams import registry
from streams.core.json_codec import decode_json

__all__ = ["RecordedFact", "RecordedGap", "RecordedPosition", "RecordedServer"]


class RecordedServer(models.Model):
    """A foreign server whose streams are or were recorded, and the process that records them."""

    name = models.TextField(unique=True, help_text="as given to --record")
    server_name = models.TextField(help_text="what the server calls itself")
    address = models.TextField(help_text="where it is followed")
    command = models.TextField(db_default="", help_text="the words after manage.py that record it again; empty: follow")
    host = models.TextField(db_default="")
    process_id = models.BigIntegerField(null=True)
    started_at = models.DateTimeField(db_default=Now())
    heartbeat_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, help_text="when recording was ended in order")

    class Meta:
        db_table = "streams_recordedserver"
        ordering = ["name"]

    def __str__(self) -> str:
        return str(self.name)  # a page's text escapes itself


class RecordedPosition(models.Model):
    """The position of a writer of a foreign server. Each life of the writer (see the module) has a row of its own."""

    server = models.ForeignKey(RecordedServer, on_delete=models.CASCADE, db_index=False)
    stream = models.TextField()
    writer = models.TextField(help_text="the instance name, with ~2, ~3 … for later lives")
    instance_name = models.TextField()
    life = models.IntegerField(db_default=1)
    is_current = models.BooleanField(db_default=True, help_text="the writer's present life")
    position = models.BigIntegerField(help_text="everything up to here was recorded, or is among the gaps")
    last_fact_position = models.BigIntegerField(null=True)
    last_fact_at = models.DateTimeField(null=True)
    last_advance_at = models.DateTimeField(db_default=Now())
    rows_recorded = models.BigIntegerField(db_default=0)
    ranges_missed = models.BigIntegerField(db_default=0)
    trimmed_upto = models.BigIntegerField(db_default=0, help_text="recorded facts up to here may have been removed")

    class Meta:
        db_table = "streams_recordedposition"
        ordering = ["server", "stream", "writer"]
        constraints = [
            models.UniqueConstraint(fields=["server", "stream", "writer"], name="streams_recordedposition_writer"),
        ]

    def __str__(self) -> str:
        return f"{self.stream} {self.writer} {self.position}"


class RecordedFact(models.Model):
    """A row that a foreign server sent, in wire form."""

    server = models.ForeignKey(RecordedServer, on_delete=models.CASCADE, db_index=False)
    stream = models.TextField()
    writer = models.TextField()
    token = models.BigIntegerField()
    index = models.IntegerField(help_text="place among the rows of its token")
    row = models.TextField(help_text="compact ASCII JSON")
    received_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_recordedfact"
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["server", "stream", "writer", "token", "index"], name="streams_recordedfact_row"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.stream} {self.writer} {self.token}"

    def fact(self) -> Any:
        """Returns the fact as an instance of the model that this program has for the stream.

        The row is brought to this program's version. Raises ``UnknownStream`` if this program has no such stream, and
        the errors of ``Stream.fact``.
        """
        stream = registry.get(self.stream)
        return stream.fact(decode_json(self.row), token=self.token, writer=self.writer, received_at=self.received_at)


class RecordedGap(models.Model):
    """A range of tokens, after < token <= upto. Facts in this range may exist, and could not be fetched."""

    server = models.ForeignKey(RecordedServer, on_delete=models.CASCADE)
    stream = models.TextField()
    writer = models.TextField()
    after = models.BigIntegerField()
    upto = models.BigIntegerField()
    reason = models.TextField(db_default="")
    recorded_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_recordedgap"
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.stream} {self.writer} ({self.after}, {self.upto}]"
