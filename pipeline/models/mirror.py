"""The table of mirrored servers, with one row for each."""

from __future__ import annotations

from django.db import models

__all__ = ["MirroredServer"]


class MirroredServer(models.Model):
    """A Synapse whose rooms are kept here, and how far: changed in the transaction that stores its events.

    ``positions`` has {stream: {writer: position}}: all events of the writer up to the position are stored here. The
    writer "" stands for all writers that are not named.
    """

    name = models.TextField(primary_key=True, help_text="also the name of the record of its positions")
    server_name = models.TextField()
    source = models.TextField(help_text="URL of its database, without password")
    address = models.TextField(help_text="of its replication")
    jobs_before = models.BigIntegerField(db_default=0, help_text="last job before the positions were read")
    # No foreign key: the row must outlive the job, which is removed after some time with all rows that refer to it.
    import_job = models.BigIntegerField(null=True, help_text="the import that filled the rooms first")
    filled_at = models.DateTimeField(null=True, help_text="end of that import; null before it")
    positions = models.JSONField()
    events = models.BigIntegerField(db_default=0, help_text="events that were stored since, live ones and old ones")
    rejected = models.BigIntegerField(db_default=0, help_text="of these, rejected by the server")
    refused = models.BigIntegerField(db_default=0, help_text="events put aside, see the quarantined lines of the job")
    left_out = models.BigIntegerField(db_default=0, help_text="events of rooms that were purged here")
    moved_at = models.DateTimeField(null=True, help_text="when events were last stored")

    class Meta:
        db_table = "pipeline_mirroredserver"

    def __str__(self) -> str:
        return f"{self.name} ({self.server_name})"
