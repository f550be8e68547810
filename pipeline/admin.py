"""Jobs, what they refused and loaded, and the live derived tables, in the admin, read-only."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from events.json_for_people import json_for_people
from pipeline import models
from streams.read_only_admin import ReadOnlyAdmin

__all__ = ["NewestFirstAdmin", "QuarantinedLineAdmin", "RoomCountAdmin"]


@admin.register(models.Job, models.ImportedRoom, models.BatchLedger)
class NewestFirstAdmin(ReadOnlyAdmin):
    """Runs of bulk work, the rooms that they loaded, and how far the live tables are: all columns, newest first."""

    ordering = ("-pk",)


@admin.register(models.QuarantinedLine)
class QuarantinedLineAdmin(NewestFirstAdmin):
    """Lines that an import did not load, and why."""

    readonly_fields = ("first_bytes",)

    @admin.display(description="first bytes")
    def first_bytes(self, line: models.QuarantinedLine) -> SafeString:
        """What stood there."""
        shown = json_for_people(line.content)
        return format_html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>', shown)


@admin.register(models.RoomCount)
class RoomCountAdmin(ReadOnlyAdmin):
    """Events per room, kept current by the live pipeline."""

    ordering = ("pk",)
    search_fields = ("pk__exact",)
