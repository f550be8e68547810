"""Read-only admin pages of the sources, rooms and refused lines of jobs, and of the tables that the live pipeline keeps current.

The page of jobs themselves is ``streams.jobs.admin``.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from events.admin.pretty_json import pretty_json
from events.admin.room_list import found_rooms
from events.models import RoomSummary
from pipeline import models
from pipeline.spark.job_steps import spark_words
from streams.admin.base import ReadOnlyAdmin
from streams.conf import stream_settings
from streams.jobs.admin import JobAdmin
from streams.jobs.confirm import QUEUE
from streams.runtime.text import safe_text

__all__ = [
    "ImportSourceAdmin",
    "MirroredServerAdmin",
    "NewestFirstAdmin",
    "QuarantinedLineAdmin",
    "RoomStatisticsAdmin",
    "SiteJobAdmin",
    "SourceWriteAdmin",
]

VIEW_ROOMS = "events.view_room"
_ROOMS_FOUND = 20


@admin.register(models.Job)
class SiteJobAdmin(JobAdmin):
    """The pages of jobs, with what this site's jobs have: rooms, which the forms search, and Spark."""

    readonly_fields = (*JobAdmin.readonly_fields, "spark")
    fieldsets = (
        JobAdmin.fieldsets[0],
        ("Before and after", {"fields": ("figures", "spark", "summary", "confirmed_from")}),
        JobAdmin.fieldsets[2],
    )

    @admin.display(description="stages of Spark")
    def spark(self, job: models.Job) -> SafeString:
        """Returns HTML with a line for each Spark stage of the job: tasks, bytes shuffled and spilled, skew."""
        return format_html_join(mark_safe("<br>"), "{}", ((words,) for words in spark_words(job.summary)))

    def get_urls(self) -> list[URLPattern]:
        return [
            path("rooms/", self.admin_site.admin_view(self.rooms_view), name="pipeline_job_rooms"),
            *super().get_urls(),
        ]

    def rooms_view(self, request: HttpRequest) -> JsonResponse:
        """Returns the rooms that match the query parameter ``q``, the most recently active first, for fields of the forms."""
        if not request.user.has_perm(QUEUE) or not request.user.has_perm(VIEW_ROOMS):
            raise PermissionDenied(VIEW_ROOMS)
        text, found = request.GET.get("q", ""), list[Any]()
        if text.strip() and "\x00" not in text:
            rooms = found_rooms(RoomSummary.objects.using(stream_settings().database), text)
            found = list(rooms.order_by("-active_on", "-active_at")[:_ROOMS_FOUND])
        return JsonResponse({"rooms": [{"id": room.room_id, "text": safe_text(str(room))} for room in found]})


@admin.register(models.ImportedRoom, models.BatchLedger, models.MendedRoom, models.ComparedRooms)
class NewestFirstAdmin(ReadOnlyAdmin):
    """A page with all columns of a table, newest rows first.

    This class serves several tables: the rooms that jobs loaded, repaired or compared, and the ledgers of the live tables.
    """

    ordering = ("-pk",)


@admin.register(models.MirroredServer)
class MirroredServerAdmin(ReadOnlyAdmin):
    """The page of the servers whose rooms are mirrored: how far, and how many events."""

    list_display = ("name", "server_name", "address", "filled_at", "moved_at", "events", "refused")
    ordering = ("pk",)


@admin.register(models.SourceWrite)
class SourceWriteAdmin(ReadOnlyAdmin):
    """The page of Spark's writes to streams."""

    ordering = ("-committed_at",)


@admin.register(models.ImportSource)
class ImportSourceAdmin(NewestFirstAdmin):
    """The page of the sources of imports.

    The list omits the column ``identity``, which is long for a large database.
    """

    list_display = ("job", "number", "name", "form", "rows")
    list_select_related = ("job",)


@admin.register(models.QuarantinedLine)
class QuarantinedLineAdmin(NewestFirstAdmin):
    """The page of the lines that an import did not load, with the reason of each."""

    readonly_fields = ("first_bytes",)

    @admin.display(description="first bytes")
    def first_bytes(self, line: models.QuarantinedLine) -> SafeString:
        """Returns the first bytes of the line, as HTML."""
        shown = pretty_json(line.content)
        return format_html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>', shown)


@admin.register(models.RoomStatistics)
class RoomStatisticsAdmin(ReadOnlyAdmin):
    """The page of the counts of rooms, which the live pipeline keeps current."""

    ordering = ("pk",)
    search_fields = ("pk__exact",)
