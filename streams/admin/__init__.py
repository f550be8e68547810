"""Read-only admin pages of the engine's tables.

The live page shows the same processes and streams with their present status. Each table of facts gets a page
automatically (`FactAdmin`).
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from streams import registry
from streams.admin.base import ReadOnlyAdmin
from streams.models import (
    Epoch,
    FederationAcknowledgement,
    Instance,
    LowWaterMark,
    ParkedFact,
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
    WriterResolution,
)

__all__ = ["EpochAdmin", "FactAdmin", "InstanceAdmin", "ReaderAdmin", "StreamPositionAdmin", "WriterResolutionAdmin"]


@admin.register(StreamPosition)
class StreamPositionAdmin(ReadOnlyAdmin):
    """Pages of the positions: one for each writer of each stream."""

    list_display = (
        "stream",
        "instance_name",
        "position",
        "state",
        "pending_facts",
        "oldest_pending_at",
        "last_advance_at",
    )
    list_filter = ("stream", "state")
    search_fields = ("stream", "instance_name")


@admin.register(StatusChange)
class StatusChangeAdmin(ReadOnlyAdmin):
    """The changes of status of writers and readers. The history page shows them beside its plots."""

    list_display = ("at", "stream", "writer", "reader", "was", "word", "sentence")
    list_filter = ("severity",)


@admin.register(Instance)
class InstanceAdmin(ReadOnlyAdmin):
    """The processes that write or have written."""

    list_display = ("name", "state", "host", "process_id", "command", "started_at", "heartbeat_at", "lease")
    list_filter = ("state",)
    search_fields = ("name", "host")


@admin.register(Reader)
class ReaderAdmin(ReadOnlyAdmin):
    """The connections, followers and Spark queries that read streams."""

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


@admin.register(WriterResolution)
class WriterResolutionAdmin(ReadOnlyAdmin):
    """What others did to a writer: retired it as dead (with the evidence), asked it to leave, or ended its sessions."""

    list_display = ("resolved_at", "action", "stream", "instance_name", "from_position", "to_position", "resolved_by")
    list_filter = ("action", "stream")
    search_fields = ("instance_name",)


@admin.register(Epoch)
class EpochAdmin(ReadOnlyAdmin):
    """The epochs of this database. A restored database begins a new one."""

    list_display = ("word", "began_at", "reason", "timeline", "system_identifier")


@admin.register(WorkerConnection)
class WorkerConnectionAdmin(ReadOnlyAdmin):
    """The connections of workers over which users sync."""

    list_display = ("name", "address", "served_by", "connected_at", "last_news_at")
    search_fields = ("name", "address")


@admin.register(SyncingUser)
class SyncingUserAdmin(ReadOnlyAdmin):
    """The users and devices that sync now, with their worker."""

    list_display = ("user_id", "device_id", "worker", "started_at", "last_sync_at")
    search_fields = ("user_id", "worker")


@admin.register(FederationAcknowledgement)
class FederationAcknowledgementAdmin(ReadOnlyAdmin):
    """The token that each federation sender has acknowledged."""

    list_display = ("instance_name", "token", "acknowledged_at")


@admin.register(UserAddress)
class UserAddressAdmin(ReadOnlyAdmin):
    """The addresses from which users were seen."""

    list_display = ("user_id", "device_id", "ip", "last_seen_at", "user_agent")
    search_fields = ("user_id", "ip")


@admin.register(WireCount)
class WireCountAdmin(ReadOnlyAdmin):
    """The counters of all servers' connections, such as commands received and connections closed."""

    list_display = ("kind", "name", "total")
    list_filter = ("kind",)


@admin.register(RecordedServer)
class RecordedServerAdmin(ReadOnlyAdmin):
    """The foreign servers that are or were recorded."""

    list_display = ("name", "server_name", "address", "host", "process_id", "started_at", "heartbeat_at", "ended_at")
    search_fields = ("name", "server_name")


@admin.register(RecordedPosition)
class RecordedPositionAdmin(ReadOnlyAdmin):
    """The positions of the writers of foreign servers."""

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
class RecordedFactAdmin(ReadOnlyAdmin):
    """The recorded rows of foreign servers, newest first."""

    list_display = ("server", "stream", "writer", "token", "index", "received_at", "row")
    list_filter = ("server",)
    list_select_related = ("server",)


@admin.register(RecordedGap)
class RecordedGapAdmin(ReadOnlyAdmin):
    """The ranges of foreign servers' facts that were missed."""

    list_display = ("server", "stream", "writer", "after", "upto", "reason", "recorded_at")
    list_filter = ("server",)
    list_select_related = ("server",)


@admin.register(StoredCursor)
class StoredCursorAdmin(ReadOnlyAdmin):
    """The stored cursors of named readers."""

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


@admin.register(ParkedFact)
class ParkedFactAdmin(ReadOnlyAdmin):
    """The dead letters. ``manage.py parked`` retries and drops them."""

    list_display = ("reader", "stream", "token", "instance_name", "error", "attempts", "parked_at", "tried_at")
    list_filter = ("stream",)
    search_fields = ("reader",)


@admin.register(LowWaterMark)
class LowWaterMarkAdmin(ReadOnlyAdmin):
    """The low-water mark of each stream: what was trimmed."""

    list_display = ("stream", "position", "rows_deleted", "trimmed_at")


@admin.register(ReaderResync)
class ReaderResyncAdmin(ReadOnlyAdmin):
    """The readers whose cursor was set by hand."""

    list_display = ("resynced_at", "reader", "stream", "from_base", "to_base", "resynced_by")
    list_filter = ("stream",)
    search_fields = ("reader",)


class FactAdmin(ReadOnlyAdmin):
    """Facts of one table of a stream, newest first.

    They can be searched only by ID, because the ID is the only column with an index in all fact tables.
    """

    def get_list_display(self, request: Any) -> tuple[str, ...]:
        """Returns the ID, the writer and the time of the insert, then the table's other columns."""
        first = (self.model.id_field, "instance_name", "received_at")
        own = [field.name for field in self.model._meta.concrete_fields if field.name not in (*first, "id")]
        return (*first, *own)

    def get_ordering(self, request: Any) -> tuple[str, ...]:
        return (f"-{self.model.id_field}",)

    def get_search_fields(self, request: Any) -> tuple[str, ...]:
        return (f"{self.model.id_field}__exact",)


for _stream in registry.all_streams():
    for _model in _stream.models:
        if _model._meta.app_label == "streams" and not admin.site.is_registered(_model):
            admin.site.register(_model, FactAdmin)
