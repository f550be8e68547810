"""Read-only admin pages of state groups.

A delta has a composite key, which the admin cannot link to, so deltas are shown on the page of their group.
"""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from state.models import StateGroup, StateGroupDelta
from streams.admin.base import ReadOnlyAdmin
from streams.runtime.text import safe_text

MOST_DELTAS = 200


@admin.register(StateGroup)
class StateGroupAdmin(ReadOnlyAdmin):
    list_display = ("id", "room_id", "prev_group", "chain", "hops", "keys", "rows_to_read")
    ordering = ("-id",)
    search_fields = ("id__exact", "room_id__exact")
    readonly_fields = ("deltas",)

    @admin.display(description=f"differs in (first {MOST_DELTAS})")
    def deltas(self, group: StateGroup) -> SafeString:
        rows = StateGroupDelta.objects.filter(chain=group.chain, state_group=group.pk).order_by("type", "state_key")
        lines = rows.values_list("type", "state_key", "event_id")[:MOST_DELTAS]
        items = format_html_join(
            "",
            "<li>{} {} : {}</li>",
            ((safe_text(t, None), repr(k), safe_text(e or "not in this group", None)) for t, k, e in lines),
        )
        return format_html("<ul>{}</ul>", items)
