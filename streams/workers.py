"""Reads the data that workers reported over replication, and sends messages to workers. Any process may use this module.

Workers report which users sync, what federation senders have acknowledged, and where users were seen. Replication
servers store the reports (``streams.replication.server.worker_reports``). So every process gets the same answer, a
fraction of a second after the report. The functions block; from async code call them through ``sync_to_async``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from streams.conf import stream_settings
from streams.models import FederationAcknowledgement, SyncingUser, UserAddress, WorkerConnection
from streams.replication.common.command_hooks import subscribe
from streams.replication.protocol.commands import RemoteServerUp, format_line

__all__ = [
    "LastSeen",
    "federation_acknowledged",
    "is_syncing",
    "last_seen",
    "on_remote_server_up",
    "remote_server_up",
    "seen_addresses",
    "users_syncing",
]


@dataclass(frozen=True, slots=True)
class LastSeen:
    """A device of a user, seen at an address."""

    ip: str
    device_id: str
    user_agent: str
    last_seen_at: datetime


def users_syncing() -> frozenset[str]:
    """Returns the IDs of all users who sync on some worker now."""
    return frozenset(_syncing().values_list("user_id", flat=True).distinct())


def is_syncing(user_id: str) -> bool:
    """Returns true if the user syncs on some worker now."""
    return _syncing().filter(user_id=user_id).exists()


def federation_acknowledged() -> dict[str, int]:
    """Returns ``{instance: token}``: the position on the stream ``federation`` that each sender has acknowledged.

    Items that all senders have acknowledged are deleted. The acknowledgements are deleted when the stream begins a new
    generation.
    """
    found = FederationAcknowledgement.objects.using(stream_settings().database)
    return dict(found.values_list("instance_name", "token"))


def last_seen(user_id: str) -> datetime | None:
    """Returns the time at which the user was last seen on any device.

    Returns None if the user was never seen, or so long ago that the record was deleted.
    """
    return _addresses_of(user_id).values_list("last_seen_at", flat=True).first()


def seen_addresses(user_id: str) -> list[LastSeen]:
    """Returns the user's devices and addresses, latest first, at most 1,000."""
    return [LastSeen(row.ip, row.device_id, row.user_agent, row.last_seen_at) for row in _addresses_of(user_id)[:1_000]]


def remote_server_up(server_name: str) -> None:
    """Notifies all workers on all servers, after the commit, that a remote server can be reached again.

    The message is only a hint. Servers ignore the message if the role of this database session has no right to write,
    or if the session has ended a moment later. Raises `UnsendableCommand` for a name of more than 255 characters, or with a
    line feed.
    """
    from streams.replication.server.relay import notify_all  # noqa: PLC0415 - loads what only servers need

    given = stream_settings()
    line = format_line(RemoteServerUp(server_name), given.line_limit_bytes)
    with connections[given.database].cursor() as cursor:
        notify_all(cursor, "-", line)


def on_remote_server_up(handler: Callable[[str], None]) -> Callable[[], None]:
    """Calls ``handler(server_name)`` whenever a worker reports that a remote server is up.

    Returns a function that ends the subscription. The subscription works in processes that serve or follow replication.
    The handler is called on the event loop, so it must be quick.
    """
    return subscribe(RemoteServerUp, lambda command: handler(command.server_name))


def _syncing() -> QuerySet[SyncingUser]:
    # A replication server that died leaves rows of older connections behind.
    given = stream_settings()
    fresh = Q(last_news_at__gte=Now() - timedelta(seconds=given.worker_silence_seconds))
    keys = WorkerConnection.objects.using(given.database).filter(fresh).values("key")
    return SyncingUser.objects.using(given.database).filter(connection_key__in=keys).order_by()


def _addresses_of(user_id: str) -> QuerySet[UserAddress]:
    found = UserAddress.objects.using(stream_settings().database).filter(user_id=user_id)
    return found.order_by("-last_seen_at")
