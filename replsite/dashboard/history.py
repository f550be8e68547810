"""The page of history: how a stream and its readers did in the last hour, day or month, and whose status changed. Staff only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import mark_safe
from django.views.decorators.http import require_safe

from replsite.plots import Plot, Point, plot_svg, rates
from replsite.samples import SPANS, Span
from replsite.status import Severity
from replsite.wording import count
from streams import registry
from streams.clock import database_now
from streams.conf import stream_settings
from streams.models import Sample, StatusChange

__all__ = ["CHANGES_SHOWN", "READERS_SHOWN", "history_page"]

READERS_SHOWN = 12
CHANGES_SHOWN = 100
#: A line breaks where so many steps are missing.
_GAP_STEPS = 2.5


@require_safe
def _history_page(request: HttpRequest) -> HttpResponse:
    names = [stream.name for stream in registry.all_streams()]
    stream, span_name = request.GET.get("stream", names[0]), request.GET.get("span", "hour")
    if span_name not in SPANS:
        raise Http404(f"There is no span of that name; there are {', '.join(SPANS)}.")
    using = stream_settings().database
    samples = Sample.objects.using(using).filter(step_seconds=SPANS[span_name].step_seconds, stream=stream)
    if stream not in names and ("\x00" in stream or not samples.exists()):
        raise Http404("Nothing was recorded of a stream of that name.")
    changes = StatusChange.objects.using(using).filter(stream=stream)[:CHANGES_SHOWN]
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": f"History of {stream}",
        "stream": stream,
        "streams": names,
        "span": span_name,
        "spans": {name: span.title for name, span in SPANS.items()},
        "sections": _sections(list(samples.order_by("reader", "at")), SPANS[span_name], database_now(using)),
        "changes": [_change(change) for change in changes],
    }
    return TemplateResponse(request, "dashboard/history.html", context)


def _change(change: StatusChange) -> dict[str, Any]:
    return {
        "at": change.at,
        "who": change.writer or change.reader,
        "kind": "writer" if change.writer else "reader",
        "was": change.was or "not seen before",
        "word": change.word,
        "severity": Severity(change.severity).name.lower(),
        "sentence": change.sentence,
    }


def _sections(samples: Sequence[Sample], span: Span, now: datetime) -> list[dict[str, Any]]:
    """The stream itself, then its readers, those that did worst first."""
    by_reader: dict[str, list[Sample]] = {}
    for sample in samples:
        by_reader.setdefault(sample.reader, []).append(sample)
    own = by_reader.pop("", [])
    readers = sorted(by_reader, key=lambda name: (-max(s.severity for s in by_reader[name]), name))
    gap = timedelta(seconds=span.step_seconds * _GAP_STEPS)

    def picture(title: str, points: Sequence[Point], label: Callable[[float], str]) -> str:
        plot = Plot(title, points, now - timedelta(seconds=span.kept_seconds), now, gap, label)
        return mark_safe(plot_svg(plot))  # noqa: S308 - every text in it is escaped there

    sections = [
        {
            "title": "",
            "plots": [
                ("Facts per second", picture("Facts per second", rates(_points(own, "position"), gap), _rate)),
                ("Pending facts", picture("Pending facts", _points(own, "waiting"), _whole)),
                ("Age of the oldest", picture("Age of the oldest pending fact", _points(own, "seconds"), _age)),
            ],
        }
    ]
    for name in readers[:READERS_SHOWN]:
        rows = by_reader[name]
        sections.append(
            {
                "title": name,
                "plots": [
                    ("Lag in facts", picture(f"Lag of {name} in facts", _points(rows, "waiting"), _whole)),
                    ("Lag in time", picture(f"Lag of {name} in time", _points(rows, "seconds"), _age)),
                ],
            }
        )
    return sections


def _points(samples: Sequence[Sample], column: str) -> list[Point]:
    return [Point(sample.at, float(getattr(sample, column))) for sample in samples]


def _whole(value: float) -> str:
    return count(round(value)) if value == round(value) else f"{value:.1f}"


def _age(seconds: float) -> str:
    """Short, for an axis."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _rate(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s"


history_page = admin.site.admin_view(_history_page)
