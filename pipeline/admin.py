"""What jobs refused and loaded, and the live derived tables, in the admin, read-only; jobs themselves: ``jobs.admin``."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from events.admin.pretty_json import json_for_people
from pipeline import models
from pipeline.jobs.admin import JobAdmin
from streams.admin.base import ReadOnlyAdmin

__all__ = [
    "ImportSourceAdmin",
    "JobAdmin",
    "NewestFirstAdmin",
    "QuarantinedLineAdmin",
    "RoomStatisticsAdmin",
    "SourceWriteAdmin",
]


@admin.register(models.ImportedRoom, models.BatchLedger, models.MendedRoom, models.ComparedRooms)
class NewestFirstAdmin(ReadOnlyAdmin):
    """The rooms that runs of bulk work loaded, and how far the live tables are: all columns, newest first."""

    ordering = ("-pk",)


@admin.register(models.SourceWrite)
class SourceWriteAdmin(ReadOnlyAdmin):
    """What Spark has appended to streams."""

    ordering = ("-committed_at",)


@admin.register(models.ImportSource)
class ImportSourceAdmin(NewestFirstAdmin):
    """What imports read; the list leaves out what a large database's ranges are."""

    list_display = ("job", "number", "name", "form", "rows")
    list_select_related = ("job",)


@admin.register(models.QuarantinedLine)
class QuarantinedLineAdmin(NewestFirstAdmin):
    """Lines that an import did not load, and why."""

    readonly_fields = ("first_bytes",)

    @admin.display(description="first bytes")
    def first_bytes(self, line: models.QuarantinedLine) -> SafeString:
        """What stood there."""
        shown = json_for_people(line.content)
        return format_html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>', shown)


@admin.register(models.RoomStatistics)
class RoomStatisticsAdmin(ReadOnlyAdmin):
    """What came in for each room and who is there, kept current by the live pipeline."""

    ordering = ("pk",)
    search_fields = ("pk__exact",)
