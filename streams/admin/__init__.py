"""Read-only admin pages of the engine's tables.

The site's live page shows the present status of the same processes and streams. `FactAdmin` is the base class for
tables of facts.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest

from streams.admin.base import ReadOnlyAdmin
from streams.models import (
    Epoch,
    FederationAcknowledgement,
    KeyLock,
    LowWaterMark,
    Notice,
    ParkedFact,
    PartCursor,
    Reader,
    ReaderResync,
    RecordedFact,
    RecordedGap,
    RecordedPosition,
    RecordedServer,
    StatusChange,
    StoredCursor,
    StreamPosition,
    SyncingUser,
    UserAddress,
    WireCount,
    WorkerConnection,
)

__all__ = ["EpochAdmin", "FactAdmin", "ReaderAdmin", "StreamPositionAdmin"]


class HomeserverAdmin(ReadOnlyAdmin):
    """The admin of a table that only a homeserver fills.

    The index page of the admin lists the table only if the app ``streams.catalog`` is installed.
    """

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Returns the user's permissions, or none without ``streams.catalog``. Without permissions the index omits the table."""
        return super().get_model_perms(request) if apps.is_installed("streams.catalog") else {}


class RecordedAdmin(HomeserverAdmin):
    """The admin of a table that the recording of a foreign server fills.

    The index page of the admin lists the table if the app ``streams.catalog`` is installed, or if a recording exists.
    """

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Returns the user's permissions, or none if the index page must omit the table."""
        return super().get_model_perms(request) or (
            ReadOnlyAdmin.get_model_perms(self, request) if RecordedServer.objects.exists() else {}
        )


@admin.register(StreamPosition)
class StreamPositionAdmin(ReadOnlyAdmin):
    """The admin of the positions: one row for each writer of each stream."""

    list_display = (
        "stream",
        "instance_name",
        "position",
        "state",
        "last_fact_at",
        "last_advance_at",
    )
    list_filter = ("stream", "state")
    search_fields = ("stream", "instance_name")
    magnitudes = ("position", "last_write_position")


@admin.register(StatusChange)
class StatusChangeAdmin(ReadOnlyAdmin):
    """The admin of the status changes of writers and readers. The site's history page shows these changes beside its plots."""

    list_display = ("at", "stream", "writer", "reader", "was", "word", "sentence")
    list_filter = ("severity",)


@admin.register(Notice)
class NoticeAdmin(ReadOnlyAdmin):
    """The admin of the notices: messages by mail and webhook that the site is wrong, or well again."""

    list_display = ("at", "word", "sentence", "waiting", "attempts", "tried_at", "error")


@admin.register(Reader)
class ReaderAdmin(ReadOnlyAdmin):
    """The admin of the readers: connections, followers and Spark queries that read streams."""

    list_display = (
        "name",
        "kind",
        "address",
        "connected_at",
        "heartbeat_at",
        "lines_out",
        "buffer_bytes",
        "closed_at",
        "close_reason",
    )
    list_filter = ("kind",)
    search_fields = ("name", "address")


@admin.register(Epoch)
class EpochAdmin(ReadOnlyAdmin):
    """The admin of the epochs of this database. A restored database begins a new epoch."""

    list_display = ("word", "began_at", "reason", "timeline", "system_identifier")


@admin.register(WorkerConnection)
class WorkerConnectionAdmin(HomeserverAdmin):
    """The admin of the workers' connections over which users sync."""

    list_display = ("name", "address", "served_by", "connected_at", "last_news_at")
    search_fields = ("name", "address")


@admin.register(SyncingUser)
class SyncingUserAdmin(HomeserverAdmin):
    """The admin of the users and devices that sync now, each with the worker that reported it."""

    list_display = ("user_id", "device_id", "worker", "started_at", "last_sync_at")
    search_fields = ("user_id", "worker")


@admin.register(FederationAcknowledgement)
class FederationAcknowledgementAdmin(HomeserverAdmin):
    """The admin of the tokens that federation senders have acknowledged."""

    list_display = ("instance_name", "token", "acknowledged_at")


@admin.register(UserAddress)
class UserAddressAdmin(HomeserverAdmin):
    """The admin of the addresses at which users were seen."""

    list_display = ("user_id", "device_id", "ip", "last_seen_at", "user_agent")
    search_fields = ("user_id", "ip")


@admin.register(WireCount)
class WireCountAdmin(ReadOnlyAdmin):
    """The admin of the counters of all servers' connections, such as commands received and connections closed."""

    list_display = ("kind", "name", "total")
    list_filter = ("kind",)


@admin.register(RecordedServer)
class RecordedServerAdmin(RecordedAdmin):
    """The admin of the foreign servers that are or were recorded."""

    list_display = ("name", "server_name", "address", "host", "process_id", "started_at", "heartbeat_at", "ended_at")
    search_fields = ("name", "server_name")


@admin.register(RecordedPosition)
class RecordedPositionAdmin(RecordedAdmin):
    """The admin of the recorded positions: one row for each writer of a foreign server."""

    list_display = (
        "server",
        "stream",
        "writer",
        "position",
        "is_current",
        "last_fact_at",
        "rows_recorded",
        "ranges_missed",
        "trimmed_upto",
    )
    list_filter = ("server", "is_current")
    list_select_related = ("server",)
    search_fields = ("stream", "writer")


@admin.register(RecordedFact)
class RecordedFactAdmin(RecordedAdmin):
    """The admin of the recorded rows of foreign servers, newest first."""

    list_display = ("server", "stream", "writer", "token", "index", "received_at", "row")
    list_filter = ("server",)
    list_select_related = ("server",)


@admin.register(RecordedGap)
class RecordedGapAdmin(RecordedAdmin):
    """The admin of the gaps in recorded streams: ranges in which facts may exist that could not be fetched."""

    list_display = ("server", "stream", "writer", "after", "upto", "reason", "recorded_at")
    list_filter = ("server",)
    list_select_related = ("server",)


@admin.register(StoredCursor)
class StoredCursorAdmin(ReadOnlyAdmin):
    """The admin of the stored cursors of named readers."""

    list_display = (
        "reader",
        "stream",
        "base",
        "facts_handled",
        "facts_parked",
        "host",
        "process_id",
        "seen_at",
        "ended_at",
        "error",
    )
    list_filter = ("stream",)
    search_fields = ("reader",)


@admin.register(PartCursor)
class PartCursorAdmin(ReadOnlyAdmin):
    """The admin of the cursors of parts, by which processes share a reader's stream by key."""

    list_display = (
        "reader",
        "stream",
        "by_field",
        "part",
        "position",
        "attempts",
        "retry_at",
        "facts_handled",
        "moved_at",
    )
    list_filter = ("stream",)
    search_fields = ("reader",)


@admin.register(ParkedFact)
class ParkedFactAdmin(ReadOnlyAdmin):
    """The admin of the dead letters. ``manage.py parked`` retries and drops dead letters."""

    list_display = ("reader", "stream", "token", "key", "instance_name", "error", "attempts", "parked_at", "tried_at")
    list_filter = ("stream",)
    search_fields = ("reader",)


@admin.register(LowWaterMark)
class LowWaterMarkAdmin(ReadOnlyAdmin):
    """The admin of the low-water marks: for each stream, the position up to which its facts were trimmed."""

    list_display = ("stream", "position", "rows_deleted", "trimmed_at")


@admin.register(KeyLock)
class KeyLockAdmin(ReadOnlyAdmin):
    """The admin of the rows that appends lock while they compare or delete facts of one key.

    The index page of the admin lists the table only if the table has a row.
    """

    list_display = ("name",)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Returns the user's permissions, or none if the table is empty. Without permissions the index omits the table."""
        return super().get_model_perms(request) if KeyLock.objects.exists() else {}


@admin.register(ReaderResync)
class ReaderResyncAdmin(ReadOnlyAdmin):
    """The admin of the resyncs of readers. Each row says which cursor an operator set by hand, from which token to which."""

    list_display = ("resynced_at", "reader", "stream", "from_base", "to_base", "resynced_by")
    list_filter = ("stream",)
    search_fields = ("reader",)


class FactAdmin(ReadOnlyAdmin):
    """The base class for the admin of a table of facts, newest first.

    The facts can be searched only by ID, because the ID is the only column with an index in all fact tables.
    """

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Any:
        """Returns the fields that Django shows only if they are named here, because no form has them."""
        return [*super().get_readonly_fields(request, obj), *self._filled_in()]

    def get_fields(self, request: Any, obj: Any = None) -> Any:
        first = self._filled_in()
        return [*first, *(name for name in super().get_fields(request, obj) if name not in first)]

    def _filled_in(self) -> tuple[str, ...]:
        return self.model.id_field, "instance_name", "received_at"

    def get_list_display(self, request: Any) -> tuple[str, ...]:
        """Returns the names of the columns: first ID, writer and time of the insert, then the table's other columns."""
        first = self._filled_in()
        others = [field.name for field in self.model._meta.concrete_fields if field.name not in (*first, "id")]
        return (*first, *others)

    def get_ordering(self, request: Any) -> tuple[str, ...]:
        return (f"-{self.model.id_field}",)

    def get_search_fields(self, request: Any) -> tuple[str, ...]:
        return (f"{self.model.id_field}__exact",)
