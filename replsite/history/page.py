"""Serves the history page, to staff only.

The page has plots, and a list of changes of status, over an hour, a day, a month or any other range of time. Its subject is
a stream with its readers, a reader or writer, or the storage of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Max, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from replsite.history.moments import moment_of
from replsite.history.plots import Frame, Mark, Points, plot, rates, with_plots
from replsite.history.retention import SPANS
from replsite.history.site_changes import AWAY, BACK
from replsite.live_rows.storage import DATABASE
from replsite.status.words import Severity
from streams import registry
from streams.conf import stream_settings
from streams.db.clock import database_now
from streams.models import Sample, StatusChange
from streams.runtime.text import plain_label, safe_text

READERS_SHOWN = 12
CHANGES_SHOWN = 100
#: The line of a plot breaks between points that are more than this number of steps apart.
_GAP_STEPS = 2.5
_SPAN = "hour"
_FORM_OF_TIME = "%Y-%m-%dT%H:%M:%S"


@require_safe
def _history_page(request: HttpRequest) -> HttpResponse:
    names = [stream.name for stream in registry.all_streams()]
    asked = _asked(request, names[0] if names else "")
    samples = asked.samples()
    if not samples and asked.stream not in (*names, ""):
        raise Http404("Nothing was recorded of a stream of that name.")
    changes = list(asked.changes())
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "History of storage" if asked.is_storage else f"History of {safe_text(asked.who or asked.stream)}",
        "stream": asked.stream,
        "who": asked.who,
        "is_storage": asked.is_storage,
        "streams": names,
        "span": asked.range.span,
        "spans": {name: span.title for name, span in SPANS.items()},
        "time": asked.range.query,
        "from": f"{asked.range.begin:{_FORM_OF_TIME}}",
        "until": f"{asked.range.end:{_FORM_OF_TIME}}",
        **_Drawing(asked, changes).drawn(samples),
        "changes": [_change(change) for change in changes],
    }
    return TemplateResponse(request, "dashboard/history.html", context)


@dataclass(frozen=True, slots=True)
class _Range:
    """The range of time to show, and the length of its steps. ``span`` is empty if the viewer entered begin and end."""

    begin: datetime
    end: datetime
    step_seconds: int
    span: str = ""

    @property
    def query(self) -> str:
        """The part of a query string that selects this range."""
        if self.span:
            return f"span={self.span}"
        return f"from={self.begin:{_FORM_OF_TIME}}&until={self.end:{_FORM_OF_TIME}}"


def _asked(request: HttpRequest, stream: str) -> _Asked:
    """Parses the query string. Raises ``Http404`` for names that cannot exist.

    ``stream`` is the stream to show if the query string names no stream, reader or writer.
    """
    using, who = stream_settings().database, request.GET.get("who", "")
    shown = _range(request, database_now(using))
    wanted = "" if who else request.GET.get("stream", stream)
    if "\x00" in who + wanted:
        raise Http404("There is no such name.")
    return _Asked(wanted, who, shown, using)


def _range(request: HttpRequest, now: datetime) -> _Range:
    """Returns the range to show: from ``?from=`` until ``?until=`` or now. Without ``?from=``, ``?span=`` gives its length."""
    if request.GET.get("from"):
        begin = moment_of(request.GET["from"])
        end = min(moment_of(request.GET["until"]), now) if request.GET.get("until") else now
        if begin >= end:
            raise Http404("The range ends before it begins.")
        kept = [span for span in SPANS.values() if now - timedelta(seconds=span.kept_seconds) <= begin]
        longest = max(SPANS.values(), key=lambda span: span.kept_seconds)
        return _Range(begin, end, min((span.step_seconds for span in kept), default=longest.step_seconds))
    name = request.GET.get("span", _SPAN)
    if name not in SPANS:
        raise Http404(f"There is no span of that name; there are {', '.join(SPANS)}.")
    return _Range(now - timedelta(seconds=SPANS[name].kept_seconds), now, SPANS[name].step_seconds, name)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request for a page. Its subject is the stream ``stream``, or the reader or writer ``who`` on all streams.

    If both names are empty, the subject is the storage of the database.
    """

    stream: str
    who: str
    range: _Range
    using: str

    @property
    def is_storage(self) -> bool:
        return not self.stream and not self.who

    def samples(self) -> list[Sample]:
        """Returns the samples to plot.

        For a stream, these are its own samples and those of its ``READERS_SHOWN`` worst readers. For a reader, they are
        the samples of its ``READERS_SHOWN`` worst streams. For storage, they are those of all tables.
        """
        first = self.range.begin - timedelta(seconds=self.range.step_seconds)
        found = Sample.objects.using(self.using).filter(
            step_seconds=self.range.step_seconds, at__gte=first, at__lte=self.range.end
        )
        if self.who:
            wanted = found.filter(reader=plain_label(self.who, {self.who})).exclude(stream="")
        else:
            wanted = found.filter(stream=self.stream)
        if not self.is_storage:
            # The database selects the readers, because the samples of all readers may be more than a page can read.
            worst = wanted.exclude(reader="").values_list("stream", "reader").annotate(worst=Max("severity"))
            shown = Q(stream=self.stream, reader="")
            for stream, reader, _ in worst.order_by("-worst", "stream", "reader")[:READERS_SHOWN]:
                shown |= Q(stream=stream, reader=reader)
            wanted = wanted.filter(shown)
        return list(wanted.order_by("stream", "reader", "at"))

    def changes(self) -> QuerySet[StatusChange]:
        """Returns the newest changes of the subject and of the whole site.

        If the viewer entered begin and end, returns only the changes in this range.
        """
        found = StatusChange.objects.using(self.using)
        if not self.range.span:
            found = found.filter(at__gte=self.range.begin, at__lte=self.range.end)
        if self.who:
            of_subject = Q(writer=self.who) | Q(reader=plain_label(self.who, {self.who}))
            return found.filter(of_subject | Q(stream=""))[:CHANGES_SHOWN]
        return found.filter(stream__in=[self.stream, ""])[:CHANGES_SHOWN]


def _change(change: StatusChange) -> dict[str, Any]:
    return {
        "at": change.at,
        "who": safe_text(change.writer or change.reader or change.stream or "the site"),
        "kind": "writer" if change.writer else "reader" if change.reader else "",
        "stream": change.stream,
        "was": change.was or "fine, or not there",
        "word": change.word,
        "severity": Severity(change.severity).name.lower(),
        "sentence": safe_text(change.sentence, None),
    }


class _Drawing:
    """The plots of one page.

    Marks in the plots show changes of status. The marks for a reader are in that reader's plots, and the marks for the
    writers of a stream in the plots of the stream. Changes of the whole site, such as a new version of the program, are
    marked in all plots.
    """

    def __init__(self, asked: _Asked, changes: Sequence[StatusChange]) -> None:
        self.asked = asked
        self.changes = changes
        gap = timedelta(seconds=asked.range.step_seconds * _GAP_STEPS)
        self.frame = Frame(asked.range.begin, asked.range.end, gap)
        self.of_site = _site_marks([change for change in changes if not change.stream], asked.range.end)

    def drawn(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Returns the variables ``sections`` and ``plots`` of the page, made from the samples.

        The page of a stream has the stream's own plots, then its readers, worst first. The page of a reader has the
        reader's streams, worst first. The page of storage has the database and its tables, largest first.
        """
        found: dict[tuple[str, str], list[Sample]] = {}
        for sample in samples:
            found.setdefault((sample.stream, sample.reader), []).append(sample)
        of_stream = found.pop((self.asked.stream, ""), [])
        worst = sorted(found, key=lambda key: (-max(sample.severity for sample in found[key]), key))
        if self.asked.is_storage:
            largest = sorted(found, key=lambda key: -found[key][-1].position)
            return with_plots(self._table(name, found["", name]) for _, name in largest)
        readers = [self._reader(*key, found[key]) for key in worst]
        return with_plots(readers if self.asked.who else [("", self._stream(of_stream)), *readers])

    def _stream(self, rows: Sequence[Sample]) -> Iterable[dict[str, Any]]:
        marks = self._marks(lambda change: bool(change.writer))
        positions = _points(rows, "position")
        yield self._plot("Facts per second", rates(positions, self.frame.gap), "rate", marks=marks)
        yield self._plot("Position", positions, "position", marks=marks)
        yield self._plot("Open appends", _points(rows, "waiting"), marks=marks)
        yield self._plot("Age of the oldest open append", _points(rows, "seconds"), "age", marks=marks)

    def _reader(self, stream: str, reader: str, rows: Sequence[Sample]) -> tuple[str, Iterable[dict[str, Any]]]:
        name = f"{reader} on {stream}" if self.asked.who else reader
        marks = self._marks(lambda change: change.reader == reader and change.stream == stream)
        about: dict[str, Any] = {"about": name, "marks": marks}
        return name, [
            self._plot("Lag in facts", _points(rows, "waiting"), **about),
            self._plot("Lag in time", _points(rows, "seconds"), "age", **about),
            self._plot("Position", _points(rows, "position"), "position", **about),
        ]

    def _table(self, name: str, rows: Sequence[Sample]) -> tuple[str, Iterable[dict[str, Any]]]:
        plots = [self._plot("Size", _points(rows, "position"), "size", about=name)]
        if any(row.waiting for row in rows):
            plots.append(self._plot("Rows", _points(rows, "waiting"), about=name))
        return "Database" if name == DATABASE else name, plots

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

    def _plot(self, title: str, points: Points, unit: str = "whole", **more: Any) -> dict[str, Any]:
        return plot(title, points, self.frame, unit, marks=(*self.of_site, *more.pop("marks", ())), **more)


def _site_marks(changes: Sequence[StatusChange], end: datetime) -> list[Mark]:
    """Returns the marks for changes of the whole site. The time of an outage is shaded.

    ``changes`` has the newest change first. An outage whose end is not in ``changes`` lasts until ``end``.
    """
    found, until = [], end
    for change in changes:
        if change.word == BACK:
            until = change.at
        text = f"{change.at:%Y-%m-%d %H:%M:%S} UTC: {change.word}. {safe_text(change.sentence, None)}"
        if change.word == AWAY:
            found.append(Mark(change.at, "wrong", text, until))
        elif change.word != BACK:
            found.append(Mark(change.at, "site", text))
    return found


def _points(samples: Sequence[Sample], column: str) -> Points:
    return [(sample.at, float(getattr(sample, column))) for sample in samples]


history_page = admin.site.admin_view(_history_page)
