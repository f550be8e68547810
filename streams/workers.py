"""What workers told us, for anybody to ask: who syncs, what was acknowledged, where users were seen; and telling them.

Reads the tables that replication servers write (``streams.replication.server.worker_reports``), so every process gets the same
answer, a fraction of a second after the worker spoke. Blocks; from async code call it through ``sync_to_async``.
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
from streams.replication.common.command_hooks import hear
from streams.replication.protocol.commands import RemoteServerUp, format_line

__all__ = [
    "Sight",
    "federation_acknowledged",
    "is_syncing",
    "last_seen",
    "on_remote_server_up",
    "remote_server_up",
    "sights",
    "users_syncing",
]


@dataclass(frozen=True, slots=True)
class Sight:
    """A device of a user, seen at an address."""

    ip: str
    device_id: str
    user_agent: str
    last_seen_at: datetime


def users_syncing() -> frozenset[str]:
    """Everybody who syncs on some worker now."""
    return frozenset(_syncing().values_list("user_id", flat=True).distinct())


def is_syncing(user_id: str) -> bool:
    """Whether the user syncs on some worker now."""
    return _syncing().filter(user_id=user_id).exists()


def federation_acknowledged() -> dict[str, int]:
    """``{instance: token}``: up to where each federation sender has taken the stream ``federation``.

    What all of them have taken is freed; they are forgotten when the stream begins anew.
    """
    found = FederationAcknowledgement.objects.using(stream_settings().database)
    return dict(found.values_list("instance_name", "token"))


def last_seen(user_id: str) -> datetime | None:
    """When the user was last seen, on any device; None: never, or too long ago to be kept."""
    return _sights(user_id).values_list("last_seen_at", flat=True).first()


def sights(user_id: str) -> list[Sight]:
    """The user's devices and addresses, latest first."""
    return [Sight(row.ip, row.device_id, row.user_agent, row.last_seen_at) for row in _sights(user_id)[:1_000]]


def remote_server_up(server_name: str) -> None:
    """Tell all workers on all servers, once the transaction is committed, that a remote server can be reached again.

    A hint: servers take it from a session that may write and is still there a moment later.
    Raises `UnsendableCommand` for a name that no line can carry.
    """
    from streams.replication.server.relay import notify_all  # noqa: PLC0415 - loads what only servers need

    given = stream_settings()
    line = format_line(RemoteServerUp(server_name), given.line_limit_bytes)
    with connections[given.database].cursor() as cursor:
        notify_all(cursor, "-", line)


def on_remote_server_up(handler: Callable[[str], None]) -> Callable[[], None]:
    """Call ``handler(server_name)`` when a worker says that a remote server is up; the returned function ends it.

    Heard in processes that serve replication, or follow. Called on the event loop: it must be quick.
    """
    return hear(RemoteServerUp, lambda command: handler(command.server_name))


def _syncing() -> QuerySet[SyncingUser]:
    """Syncs over connections with news: those of a server that died end by themselves."""
    given = stream_settings()
    fresh = Q(last_news_at__gte=Now() - timedelta(seconds=given.worker_silence_seconds))
    keys = WorkerConnection.objects.using(given.database).filter(fresh).values("key")
    return SyncingUser.objects.using(given.database).filter(connection_key__in=keys).order_by()


def _sights(user_id: str) -> QuerySet[UserAddress]:
    found = UserAddress.objects.using(stream_settings().database).filter(user_id=user_id)
    return found.order_by("-last_seen_at")
