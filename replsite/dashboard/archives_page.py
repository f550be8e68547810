"""Serves the list of archives and exports on the disk of this process, the biggest first. Staff with a permission only.

For users who may queue jobs, each archive or export has a link to the form of the job that removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from events.admin.links import room_url
from events.admin.room_names import room_names
from events.models import Room
from pipeline.maintenance.written_folders import WrittenFolder, find_folders, with_contents
from pipeline.operations.remove_archive import RemoveArchive
from replsite.disk import disk_free, disk_reserve
from streams.conf import stream_settings
from streams.runtime.amounts import byte_size, count, counted
from streams.runtime.text import safe_text

ARCHIVES_SHOWN = 100
VIEW = "pipeline.view_job"
"""The permission that the page needs: jobs, too, name the folders of archives and their rooms."""


@require_safe
def _archives_page(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm(VIEW):
        raise PermissionDenied(VIEW)
    found, is_whole = find_folders()
    disk, free = disk_free()
    listed = [with_contents(folder) for folder in found[:ARCHIVES_SHOWN]]
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Archives and exports",
        "rows": _rows(listed, may_view_rooms=request.user.has_perm("events.view_room")),
        "sum": f"{counted(len(found), 'folder')}, {byte_size(sum(f.bytes for f in found))}",
        "left_out": max(0, len(found) - ARCHIVES_SHOWN),
        "is_whole": is_whole,
        "free": byte_size(free),
        "disk": disk,
        "reserve": byte_size(disk_reserve()),
        "is_full": free < disk_reserve(),
    }
    return TemplateResponse(request, "dashboard/archives.html", context)


archives_page = admin.site.admin_view(_archives_page)


def _rows(listed: Sequence[WrittenFolder], *, may_view_rooms: bool) -> list[dict[str, Any]]:
    using = stream_settings().database
    ids = {folder.room_id for folder in listed if folder.room_id is not None}
    known = set(Room.objects.using(using).filter(pk__in=ids).values_list("pk", flat=True))
    names = room_names(known, using) if may_view_rooms else {}
    queue = reverse("admin:pipeline_job_queue")
    rows = []
    for folder in listed:
        is_known = folder.room_id in known
        # A folder whose name is no valid text is listed, too. No job accepts it: the form says that there is no such folder.
        asked = urlencode({"kind": RemoveArchive.name, "folder": str(folder.path)}, errors="replace")
        rows.append({
            "name": safe_text(folder.path.name, None),
            "above": safe_text(str(folder.path.parent), None),
            "kind": folder.kind,
            "room": names[folder.room_id].text if folder.room_id in names else "",
            "room_id": safe_text(folder.room_id, 260),
            "url": room_url(folder.room_id) if is_known and may_view_rooms and folder.room_id else "",
            "is_gone": folder.room_id is not None and not is_known,
            "rooms": "" if folder.rooms in (None, 1) else counted(folder.rooms or 0, "room"),
            "is_of_all": folder.is_export and folder.is_finished and folder.rooms is None and not folder.is_damaged,
            "events": "" if folder.events is None else count(folder.events),
            "made_at": datetime.fromtimestamp(folder.made_at, UTC),
            "is_made": folder.is_finished and not folder.is_damaged,
            "size": byte_size(folder.bytes),
            "files": counted(folder.files, "file"),
            "remove": f"{queue}?{asked}",
        })  # fmt: skip
    return rows
