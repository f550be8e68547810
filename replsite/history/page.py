"""Serves the history page, to staff only.

The page has charts over an hour, day or month, and changes of status. It shows a stream with its readers, one reader or
writer, or the storage of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Max, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import mark_safe
from django.views.decorators.http import require_safe

from replsite.history.samples import SPANS, Span
from replsite.history.svg import Mark, Plot, Point, nice_ceiling, plot_svg, rates
from replsite.humanize import byte_size, count
from replsite.snapshot.storage import DATABASE
from replsite.status.verdicts import Severity
from streams import registry
from streams.conf import stream_settings
from streams.db.clock import database_now
from streams.models import Sample, StatusChange
from streams.runtime.text import plain_label

__all__ = ["CHANGES_SHOWN", "READERS_SHOWN", "history_page"]

READERS_SHOWN = 12
CHANGES_SHOWN = 100
#: The line of a plot breaks between points that are more than this number of steps apart.
_GAP_STEPS = 2.5
_SPAN = "hour"


@require_safe
def _history_page(request: HttpRequest) -> HttpResponse:
    names = [stream.name for stream in registry.all_streams()]
    asked = _asked(request, names[0])
    samples = asked.samples()
    if not samples and asked.stream not in (*names, ""):
        raise Http404("Nothing was recorded of a stream of that name.")
    changes = list(asked.changes())
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "History of storage" if asked.is_storage else f"History of {asked.who or asked.stream}",
        "stream": asked.stream,
        "who": asked.who,
        "is_storage": asked.is_storage,
        "streams": names,
        "span": request.GET.get("span", _SPAN),
        "spans": {name: span.title for name, span in SPANS.items()},
        "sections": _Drawing(asked, changes, database_now(asked.using)).sections(samples),
        "changes": [_change(change) for change in changes],
    }
    return TemplateResponse(request, "dashboard/history.html", context)


def _asked(request: HttpRequest, stream: str) -> _Asked:
    """Parses the query string. ``stream`` is the default stream. Raises ``Http404`` for names that cannot exist."""
    span_name, who = request.GET.get("span", _SPAN), request.GET.get("who", "")
    if span_name not in SPANS:
        raise Http404(f"There is no span of that name; there are {', '.join(SPANS)}.")
    wanted = "" if who else request.GET.get("stream", stream)
    if "\x00" in who + wanted:
        raise Http404("There is no such name.")
    return _Asked(wanted, who, SPANS[span_name], stream_settings().database)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The subject of the page: the stream ``stream``, or the reader or writer ``who`` on all streams.

    If both names are empty, the subject is the storage of the database.
    """

    stream: str
    who: str
    span: Span
    using: str

    @property
    def is_storage(self) -> bool:
        return not self.stream and not self.who

    def samples(self) -> list[Sample]:
        """Returns the samples to plot.

        For a stream, these are its own samples and those of its ``READERS_SHOWN`` worst readers. For a reader, they are
        the samples of its ``READERS_SHOWN`` worst streams. For storage, they are those of all tables.
        """
        found = Sample.objects.using(self.using).filter(step_seconds=self.span.step_seconds)
        if self.who:
            wanted = found.filter(reader=plain_label(self.who, {self.who})).exclude(stream="")
        else:
            wanted = found.filter(stream=self.stream)
        if not self.is_storage:
            # Chosen by the database: the samples of all readers may be more than a page can read.
            worst = wanted.exclude(reader="").values_list("stream", "reader").annotate(worst=Max("severity"))
            shown = Q(stream=self.stream, reader="")
            for stream, reader, _ in worst.order_by("-worst", "stream", "reader")[:READERS_SHOWN]:
                shown |= Q(stream=stream, reader=reader)
            wanted = wanted.filter(shown)
        return list(wanted.order_by("stream", "reader", "at"))

    def changes(self) -> QuerySet[StatusChange]:
        found = StatusChange.objects.using(self.using)
        if self.who:
            return found.filter(Q(writer=self.who) | Q(reader=plain_label(self.who, {self.who})))[:CHANGES_SHOWN]
        return found.filter(stream=self.stream)[:CHANGES_SHOWN]


def _change(change: StatusChange) -> dict[str, Any]:
    return {
        "at": change.at,
        "who": change.writer or change.reader,
        "kind": "writer" if change.writer else "reader",
        "stream": change.stream,
        "was": change.was or "fine, or not there",
        "word": change.word,
        "severity": Severity(change.severity).name.lower(),
        "sentence": change.sentence,
    }


@dataclass(frozen=True, slots=True)
class _About:
    """The subject of a plot: its name, and a mark for each change of its status."""

    name: str
    marks: Sequence[Mark] = ()


class _Drawing:
    """The plots of one page.

    Changes of a reader's status are marked in the plots of that reader, changes of writers in the plots of the stream.
    """

    def __init__(self, asked: _Asked, changes: Sequence[StatusChange], now: datetime) -> None:
        self.asked = asked
        self.changes = changes
        self.now = now
        self.gap = timedelta(seconds=asked.span.step_seconds * _GAP_STEPS)

    def sections(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """Returns the sections of the page.

        For a stream: its own plots, then its readers, worst first. For a reader: its streams, worst first. For storage:
        the database and its tables, largest first.
        """
        found: dict[tuple[str, str], list[Sample]] = {}
        for sample in samples:
            found.setdefault((sample.stream, sample.reader), []).append(sample)
        own = found.pop((self.asked.stream, ""), [])
        worst = sorted(found, key=lambda key: (-max(sample.severity for sample in found[key]), key))
        if self.asked.is_storage:
            return [
                self._table(name, found["", name])
                for _, name in sorted(found, key=lambda key: -found[key][-1].position)
            ]
        readers = [self._reader(*key, found[key]) for key in worst]
        return readers if self.asked.who else [self._stream(own), *readers]

    def _stream(self, rows: Sequence[Sample]) -> dict[str, Any]:
        about = _About("", self._marks(lambda change: bool(change.writer)))
        plots = [
            self._plot(about, "Facts per second", rates(_points(rows, "position"), self.gap), _rate),
            self._plot(about, "Position", _points(rows, "position"), _whole, from_lowest=True),
            self._plot(about, "Pending facts", _points(rows, "waiting"), _whole),
            self._plot(about, "Age of the oldest pending fact", _points(rows, "seconds"), _age),
        ]
        return {"title": "", "plots": plots}

    def _reader(self, stream: str, reader: str, rows: Sequence[Sample]) -> dict[str, Any]:
        name = f"{reader} on {stream}" if self.asked.who else reader
        about = _About(name, self._marks(lambda change: change.reader == reader and change.stream == stream))
        plots = [
            self._plot(about, "Lag in facts", _points(rows, "waiting"), _whole),
            self._plot(about, "Lag in time", _points(rows, "seconds"), _age),
            self._plot(about, "Position", _points(rows, "position"), _whole, from_lowest=True),
        ]
        return {"title": name, "plots": plots}

    def _table(self, name: str, rows: Sequence[Sample]) -> dict[str, Any]:
        plots = [self._plot(_About(name), "Size", _points(rows, "position"), _size)]
        if any(row.waiting for row in rows):
            plots.append(self._plot(_About(name), "Rows", _points(rows, "waiting"), _whole))
        return {"title": "Database" if name == DATABASE else name, "plots": plots}

    def _marks(self, is_about: Callable[[StatusChange], bool]) -> list[Mark]:
        return [
            Mark(
                change.at,
                Severity(change.severity).name.lower(),
                f"{change.at:%Y-%m-%d %H:%M:%S} UTC: {change.writer or change.reader} became {change.word}",
            )
            for change in self.changes
            if is_about(change)
        ]

    def _plot(
        self,
        about: _About,
        title: str,
        points: Sequence[Point],
        label: Callable[[float], str],
        *,
        from_lowest: bool = False,
    ) -> tuple[str, str]:
        low = _round_below([point.value for point in points]) if from_lowest else 0.0
        begin = self.now - timedelta(seconds=self.asked.span.kept_seconds)
        said = f"{title} of {about.name}" if about.name else title
        plot = Plot(said, points, begin, self.now, self.gap, label, low, about.marks)
        return title, mark_safe(plot_svg(plot))  # noqa: S308 - every text in it is escaped there


def _round_below(values: Sequence[float]) -> float:
    """Returns a round number near the lowest value and not above it. Without values, returns 0."""
    if not values:
        return 0.0
    step = nice_ceiling(max(values) - min(values)) / 2
    return min(values) // step * step


def _points(samples: Sequence[Sample], column: str) -> list[Point]:
    return [Point(sample.at, float(getattr(sample, column))) for sample in samples]


def _whole(value: float) -> str:
    return count(round(value)) if value == round(value) else f"{value:.1f}"


def _size(value: float) -> str:
    return byte_size(round(value))


def _age(seconds: float) -> str:
    """Formats a duration with one unit, such as ``1.5 h``, for the axis of a plot."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _rate(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:.1f}/s"


history_page = admin.site.admin_view(_history_page)
