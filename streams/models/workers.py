"""Tables of the data that workers report over replication: syncing users, acknowledgements, addresses of users.

``streams.replication.common.worker_sql`` writes the tables, ``streams.workers`` reads them. Of access tokens only
digests are stored.
"""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

__all__ = ["FederationAcknowledgement", "SyncingUser", "UserAddress", "WireCount", "WorkerConnection"]


class WorkerConnection(models.Model):
    """A connection over which a worker reported syncing users.

    The ``SyncingUser`` rows of the connection are deleted with its row.
    """

    key = models.TextField(primary_key=True, help_text="that of the connection in the table of readers")
    name = models.TextField(help_text="what the worker calls itself")
    address = models.TextField(db_default="")
    served_by = models.TextField(db_default="", help_text="the replication server of the connection")
    connected_at = models.DateTimeField(db_default=Now())
    last_news_at = models.DateTimeField(db_default=Now(), help_text="when the worker last said anything")

    class Meta:
        db_table = "streams_workerconnection"
        ordering = ["name", "key"]

    def __str__(self) -> str:
        return str(self.name)  # a page's text escapes itself


class SyncingUser(models.Model):
    """A user who syncs on a worker process now, with one device, or without a device if ``device_id`` is empty."""

    connection_key = models.TextField()
    worker = models.TextField(help_text="the random ID of the worker process, not its name")
    user_id = models.TextField()
    device_id = models.TextField(db_default="")
    last_sync_at = models.DateTimeField(help_text="as the worker said")
    started_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_syncinguser"
        constraints = [
            models.UniqueConstraint(
                fields=["connection_key", "worker", "user_id", "device_id"], name="streams_syncinguser_key"
            ),
        ]
        indexes = [
            models.Index(fields=["user_id"], name="streams_syncinguser_user"),
            models.Index(fields=["worker"], name="streams_syncinguser_worker"),
        ]
        ordering = ["user_id", "worker"]

    def __str__(self) -> str:
        return f"{self.user_id} on {self.worker}"


class FederationAcknowledgement(models.Model):
    """The position up to which a federation sender has acknowledged the stream ``federation``.

    This is the position that the sender reported last, even if it reported a higher position before.
    """

    instance_name = models.TextField(primary_key=True)
    token = models.BigIntegerField()
    acknowledged_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "streams_federationacknowledgement"
        ordering = ["instance_name"]

    def __str__(self) -> str:
        return f"{self.instance_name} {self.token}"


class UserAddress(models.Model):
    """An address at which a user was seen, and the last time at which that happened.

    There is one row for each user, access token and address.
    """

    user_id = models.TextField()
    token_digest = models.TextField(help_text="SHA-256 of the access token; the token itself is not stored")
    ip = models.TextField(db_default="")
    device_id = models.TextField(db_default="")
    user_agent = models.TextField(db_default="")
    last_seen_at = models.DateTimeField()

    class Meta:
        db_table = "streams_useraddress"
        verbose_name_plural = "user addresses"
        constraints = [
            models.UniqueConstraint(fields=["user_id", "token_digest", "ip"], name="streams_useraddress_key"),
        ]
        indexes = [models.Index(fields=["last_seen_at"], name="streams_useraddress_seen")]
        ordering = ["-last_seen_at"]

    def __str__(self) -> str:
        return f"{self.user_id} {self.ip}"


class WireCount(models.Model):
    """A counter of events on replication connections, by kind and name, such as commands received.

    The counter covers all replication servers since the table was created.
    """

    kind = models.TextField(help_text="closed, refused, received, sent, updates or dropped")
    name = models.TextField()
    total = models.BigIntegerField(db_default=0)

    class Meta:
        db_table = "streams_wirecount"
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="streams_wirecount_key")]
        ordering = ["kind", "name"]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.total}"
