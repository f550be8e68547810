"""The table of epochs. A restore of the database begins a new epoch, as ``streams.epochs`` explains."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

__all__ = ["Epoch"]


class Epoch(models.Model):
    """One epoch: the time from the creation or a restore of the database to the next restore.

    The newest row is the present epoch. The identity columns describe the database. If the identity of the running
    database differs, the database is a restored copy, and begins a new epoch.
    """

    word = models.TextField(unique=True, help_text="random; tokens that we hand out to keep carry it")
    follows = models.TextField(
        unique=True,
        null=True,
        help_text="word of the epoch before; empty for the first, so that none has two successors",
    )
    reason = models.TextField(help_text="why it began")
    system_identifier = models.TextField(help_text="of the PostgreSQL cluster")
    database_oid = models.BigIntegerField()
    table_oid = models.BigIntegerField(help_text="of this table: a restore into the same database makes it anew")
    timeline = models.BigIntegerField(
        help_text="of the cluster: rises with each promotion or recovery to a point in time"
    )
    began_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_epoch"
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.word} since {self.began_at:%Y-%m-%d %H:%M:%S}"
