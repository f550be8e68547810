"""Serves the statistics page: incoming events, active users, totals, and the biggest rooms. Staff only.

The page shows the tables of the live pipeline (``pipeline.statistics.update``). The number of queries does not depend on
the number of rooms. Rooms are listed only for users with the permission to see their statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from events.admin.links import room_url
from pipeline.models import BatchLedger, RoomStatistics, ServerStatistics
from replsite.history.plots import with_plots
from replsite.history.statistics_plots import DAY_SECONDS, GROUPS, PERIODS, Period, Steps, begin_of_step, plots_of
from replsite.humanize import count
from streams.conf import stream_settings
from streams.db.clock import database_now
from streams.runtime.text import shown

__all__ = ["ROOMS_SHOWN", "statistics_page"]

ROOMS_SHOWN = 20
_DAYS_SHOWN = 7
_ROOMS_OF_A_DAY = 5
_ORDERS = {
    "events": "Events",
    "messages": "Messages",
    "history": "History",
    "joined": "Members",
    "state_entries": "State",
}
_BUSIEST = """
SELECT day.at::date, room.room_id, room.events
FROM generate_series(%(today)s::date, %(today)s::date - %(days)s, interval '-1 day') AS day (at)
CROSS JOIN LATERAL (
  SELECT room_id, events FROM pipeline_roomday WHERE day = day.at::date AND events > 0
  ORDER BY events DESC, room_id LIMIT %(limit)s
) AS room ORDER BY day.at DESC, room.events DESC, room.room_id
"""


@require_safe
def _statistics_page(request: HttpRequest) -> HttpResponse:
    name, order = request.GET.get("period", "quarter"), request.GET.get("by", "events")
    if name not in PERIODS or order not in _ORDERS:
        raise Http404(f"There are the periods {', '.join(PERIODS)} and the orders {', '.join(_ORDERS)}.")
    using = stream_settings().database
    now = database_now(using)
    ledger = BatchLedger.objects.using(using).filter(query="statistics").first()
    may_see_rooms = request.user.has_perm("pipeline.view_roomstatistics")
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Statistics",
        "period": name,
        "periods": {key: period.title for key, period in PERIODS.items()},
        "step": PERIODS[name].step,
        "kept_at": ledger.applied_at if ledger is not None else None,
        **_plots(PERIODS[name], now, using),
        "order": order,
        "orders": _ORDERS,
        "may_see_rooms": may_see_rooms,
        "biggest": _biggest(order, using) if may_see_rooms else [],
        "busiest": _busiest(now, using) if may_see_rooms else [],
    }
    return TemplateResponse(request, "dashboard/statistics.html", context)


def _plots(period: Period, now: datetime, using: str) -> dict[str, Any]:
    """Returns the variables ``sections`` and ``plots`` of the page: the plots of each group over the period until ``now``."""
    begin = begin_of_step(now - timedelta(days=period.days), DAY_SECONDS)
    steps = {step: _steps(step, begin, using) for step in {period.step_seconds, DAY_SECONDS}}
    return with_plots(
        (group.title, plots_of(group, steps[DAY_SECONDS if group.of_days else period.step_seconds], begin, now))
        for group in GROUPS
    )


def _steps(step_seconds: int, begin: datetime, using: str) -> Steps:
    columns = [series.column for group in GROUPS for series in group.series]
    rows = ServerStatistics.objects.using(using).filter(step_seconds=step_seconds, at__gte=begin).order_by("at")
    return Steps(step_seconds, [(row["at"], row) for row in rows.values("at", *columns)])


def _biggest(order: str, using: str) -> list[dict[str, Any]]:
    rooms = list(RoomStatistics.objects.using(using).order_by(f"-{order}", "room_id")[:ROOMS_SHOWN])
    most = max((getattr(room, order) for room in rooms), default=0) or 1
    return [
        {
            "name": shown(room.room_id, 260),
            "url": room_url(room.room_id),
            "share": round(100 * getattr(room, order) / most),
            "cells": [(title, count(getattr(room, column))) for column, title in _ORDERS.items()],
            "last": room.last_event_at,
        }
        for room in rooms
    ]


def _busiest(now: datetime, using: str) -> list[dict[str, Any]]:
    """Returns the days of the last week, the latest first, each with its busiest rooms."""
    given: dict[str, Any] = {"today": now.date(), "days": _DAYS_SHOWN - 1, "limit": _ROOMS_OF_A_DAY}
    with connections[using].cursor() as cursor:
        cursor.execute(_BUSIEST, given)
        found: Sequence[tuple[Any, str, int]] = cursor.fetchall()
    days: dict[Any, list[dict[str, Any]]] = {}
    for day, room_id, events in found:
        room = {"name": shown(room_id, 260), "url": room_url(room_id), "events": count(events)}
        days.setdefault(day, []).append(room)
    return [{"day": day, "rooms": rooms} for day, rooms in days.items()]


statistics_page = admin.site.admin_view(_statistics_page)
