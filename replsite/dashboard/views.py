"""The live page over HTTP: first rendering, and the same data as JSON for browsers without a WebSocket. Staff only."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

from django.contrib import admin
from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from events.admin.links import room_url
from replsite.dashboard.cells import Cell, Group, Page, Row, Tile
from replsite.dashboard.diff import TABLES, changes, table_changes
from replsite.dashboard.page import live_page_data
from replsite.dashboard.storage import room_groups
from replsite.dashboard.tables import SHOWN
from replsite.http.database_down import away_response
from replsite.humanize import duration
from replsite.snapshot.shared import SHARED
from replsite.snapshot.types import Snapshot

__all__ = ["live_data", "live_page", "live_rooms"]

_SEE_ROOMS, _OPEN_ROOM = "pipeline.view_roomstatistics", "events.view_room"
#: Beside these words the sentence says nothing more.
_WORDS_THAT_SAY_ALL = ("writing", "idle", "current", "retired")
_NO_JOB = 987_654_321
#: What a row's menu offers, and who may.
_ACTIONS = {
    "disconnect": "streams.disconnect_reader",
    "forget": "streams.forget_reader",
    "retire": "streams.retire_writer",
    "end": "streams.end_writer",
    "cancel": "pipeline.cancel_job",
}
#: Who may see the objects that rows are about, by table: the word of their page, and its model.
_OBJECTS = {
    "streams": ("position", "streams", "streamposition"),
    "readers": ("reader", "streams", "reader"),
    "jobs": ("job", "pipeline", "job"),
}


def _may_open(request: HttpRequest, table: str) -> bool:
    _, app, model = _OBJECTS[table]
    return request.user.has_perm(f"{app}.view_{model}")


@require_safe
def _live_page(request: HttpRequest) -> HttpResponse:
    snapshot = SHARED.get()
    page = live_page_data(snapshot)
    may_see_rooms = request.user.has_perm(_SEE_ROOMS)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Streams",
        "as_of": snapshot.as_of,
        "health": page["health"],
        "summary": [_tile(tile, snapshot.as_of) for tile in page["summary"]],
        "tables": _tables(request, snapshot, page, may_see_rooms=may_see_rooms),
        "addresses": _addresses(request),
        "may": " ".join(word for word, permission in _ACTIONS.items() if request.user.has_perm(permission)),
        "rooms_data": reverse("live-rooms") if may_see_rooms else "",
    }
    return TemplateResponse(request, "dashboard/live.html", context)


def _tables(request: HttpRequest, snapshot: Snapshot, page: Page, *, may_see_rooms: bool) -> list[dict[str, Any]]:
    groups: dict[str, list[Group]] = {name: page[name] for name in TABLES}
    if may_see_rooms:
        groups["rooms"] = _rooms(snapshot)
    opened = {name for name in _OBJECTS if _may_open(request, name)}
    opened |= {"rooms"} if request.user.has_perm(_OPEN_ROOM) else set()
    return [_table(name, groups[name], snapshot, has_links=name in opened) for name in SHOWN if name in groups]


def _table(name: str, groups: list[Group], snapshot: Snapshot, *, has_links: bool) -> dict[str, Any]:
    table, now = SHOWN[name], snapshot.as_of
    storage = snapshot.storage if name in ("storage", "rooms") else None
    return {
        "id": name,
        "title": table.title,
        "about": table.about,
        "nothing": table.nothing,
        "columns": [column for column in table.columns[:-1] if column.title != "Status" or table.has_words],
        "has_words": table.has_words,
        "as_of": now if storage is None else storage.as_of,
        "groups": [_group(name if has_links else "", group, now, has_words=table.has_words) for group in groups],
    }


def _addresses(request: HttpRequest) -> dict[str, str]:
    """Where the objects that the viewer may see and the pages of actions are; ``~`` stands for what the row names."""
    found = {
        word: reverse(f"admin:{app}_{model}_change", args=["~"])
        for table, (word, app, model) in _OBJECTS.items()
        if _may_open(request, table)
    }
    found["cancel"] = reverse("admin:pipeline_job_cancel", args=[_NO_JOB]).replace(str(_NO_JOB), "~")
    actions = {
        "disconnect": "disconnect-reader",
        "forget": "forget-reader",
        "retire": "retire-writer",
        "end": "end-writer",
    }
    found |= {word: f"{reverse(name)}?name=~" for word, name in actions.items()}
    return found | {"history": f"{reverse('live-history')}?stream=~", "who": f"{reverse('live-history')}?who=~"}


def _group(table: str, group: Group, now: datetime, *, has_words: bool) -> dict[str, Any]:
    """A group as the template shows it: without JavaScript an age is what it was when the page was made."""
    rows = [_row(table, row, now, has_words=has_words) for row in (group["head"], *group["rows"])]
    return {"key": group["key"], "head": rows[0], "rows": rows[1:]}


def _row(table: str, row: Row, now: datetime, *, has_words: bool) -> dict[str, Any]:
    name, word, *rest, why = row["cells"]
    says_all = row["severity"] == "fine" and word["text"] in _WORDS_THAT_SAY_ALL
    sentence = "" if has_words and says_all else why["text"]
    before, _, after = sentence.partition(row["command"]) if "command" in row else (sentence, "", "")
    link = room_url(name["text"]) if table == "rooms" else ""
    if table in _OBJECTS and "id" in row:
        _, app, model = _OBJECTS[table]
        link = reverse(f"admin:{app}_{model}_changelist") + f"{quote(row['id'], safe='')}/change/"
    return {
        "key": row["key"],
        "severity": row["severity"],
        "name": _cell(name, now),
        "link": link,
        "word": word["text"] if has_words else None,
        "cells": [_cell(cell, now) for cell in rest],
        "before": before,
        "command": row.get("command", ""),
        "after": after,
    }


def _cell(cell: Cell, now: datetime) -> dict[str, Any]:
    age = _age(cell["since"], now) if "since" in cell else ""
    text = f"{_age(cell['at'], now)} ago" if "at" in cell else cell["text"]
    sub = " · ".join(part for part in (cell.get("sub", ""), age and f"for {age}") if part)
    return {"text": text, "sub": sub, "at": cell.get("at", ""), "share": cell.get("share")}


def _tile(tile: Tile, now: datetime) -> dict[str, Any]:
    return {"title": tile["title"], "severity": tile["severity"], **_cell(tile["cell"], now)}


def _age(moment: str, now: datetime) -> str:
    return duration((now - datetime.fromisoformat(moment)).total_seconds())


def _rooms(snapshot: Snapshot) -> list[Group]:
    return room_groups(snapshot.storage.rooms if snapshot.storage is not None else ())


live_page = admin.site.admin_view(_live_page)


@require_safe
def live_data(request: HttpRequest) -> HttpResponse:
    """Everything on the page, in the form of the WebSocket's first message. 403 instead of a login page."""
    try:
        if not admin.site.has_permission(request):
            return JsonResponse({"error": "Log in as staff."}, status=403)
        found = changes(None, live_page_data(SHARED.get()))
    except DatabaseError as error:
        return away_response(request, error)
    response = JsonResponse({"number": 0, **found})
    response["Cache-Control"] = "no-store"
    return response


@require_safe
def live_rooms(request: HttpRequest) -> HttpResponse:
    """The biggest rooms, for those who may see them; asked for once in a while, in the form of a table's change."""
    try:
        if not admin.site.has_permission(request) or not request.user.has_perm(_SEE_ROOMS):
            return JsonResponse({"error": "You may not see rooms."}, status=403)
        snapshot = SHARED.get()
    except DatabaseError as error:
        return away_response(request, error)
    groups = _rooms(snapshot)
    linked = groups if request.user.has_perm(_OPEN_ROOM) else []
    links = {group["key"]: room_url(group["key"]) for group in linked}
    as_of = snapshot.storage.as_of if snapshot.storage is not None else snapshot.as_of
    found = {"rooms": table_changes(None, groups), "links": links, "as_of": as_of.isoformat()}
    response = JsonResponse(found)
    response["Cache-Control"] = "no-store"
    return response
