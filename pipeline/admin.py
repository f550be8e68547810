"""Read-only admin pages of the sources, rooms and refused lines of jobs, and of the tables that the live pipeline keeps current.

The page of jobs themselves is ``pipeline.jobs.admin``.
"""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from events.admin.pretty_json import pretty_json
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
    """A page with all columns of a table, newest rows first.

    This class serves several tables: the rooms that jobs loaded, repaired or compared, and the ledgers of the live tables.
    """

    ordering = ("-pk",)


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
