"""Lists the actions of people and processes, newest first, from the tables that record them.

These sources are the admin's log (actions and logins of staff), jobs, and readers that were set to new positions. Each
source is read in the order of its primary key, which rises with time, and the rows are merged. If there is a filter, one
page searches at most ``SEARCHED`` rows of each source. The next page continues below these rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any

from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from replsite import installed_apps
from replsite.history.logins import LOGGED_IN
from streams.conf import stream_settings
from streams.db.readable import instances
from streams.models import ReaderResync
from streams.runtime.text import safe_text

if installed_apps.has("pipeline"):
    from pipeline.models import Job

SEARCHED = 10_000
_MOST_OF_TEXT = 500
_VERBS = {ADDITION: "Added", CHANGE: "Changed", DELETION: "Deleted"}
_NEWEST = 2**63 - 1
_USER = f"user__{get_user_model().USERNAME_FIELD}"


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of the list: who did what, when. ``url`` is the page of the object that the action was about, or empty."""

    at: datetime
    who: str
    kind: str
    text: str
    url: str
    key: int


@dataclass(frozen=True, slots=True)
class Source:
    """A table that records actions.

    To see the table's rows, a user needs ``permission``. ``who`` and ``at`` are the columns with the name and the time.
    """

    title: str
    permission: str
    rows: Callable[[], QuerySet[Any]]
    who: str
    at: str
    line: Callable[[Any], tuple[str, str]]
    """Returns (the action as text, the address of the subject's page) for a row."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters of the list. ``kinds`` are names of ``SOURCES``. An empty value filters nothing."""

    kinds: tuple[str, ...]
    who: str = ""
    begin: datetime | None = None
    end: datetime | None = None
    #: Source -> the lowest key that earlier pages have read.
    before: Mapping[str, int] = field(default_factory=dict)

    @property
    def filters(self) -> bool:
        """True if some filter is set besides ``kinds``."""
        return bool(self.who or self.begin or self.end)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the list.

    ``before`` maps each source to the key below which the next page begins. It is empty on the last page.
    """

    rows: list[Happened]
    before: Mapping[str, int]


def _logged(**wanted: Any) -> Callable[[], QuerySet[Any]]:
    return lambda: LogEntry.objects.filter(**wanted).select_related("user", "content_type")


def _actions() -> QuerySet[Any]:
    return LogEntry.objects.exclude(change_message__startswith=LOGGED_IN).select_related("user", "content_type")


def _action_line(entry: LogEntry) -> tuple[str, str]:
    kind = entry.content_type.name if entry.content_type is not None else "object"
    text = entry.get_change_message()
    if entry.action_flag != CHANGE or not text:
        text = f"{_VERBS.get(entry.action_flag, 'Changed')} {kind} {entry.object_repr}. {text}"
    return text, ""


def _resync_line(row: ReaderResync) -> tuple[str, str]:
    was = "no cursor" if row.from_base is None else row.from_base
    url = f"{reverse('live-history')}?{urlencode({'who': row.reader})}"
    return f"Reader {row.reader} on {row.stream}: cursor set from {was} to {row.to_base}.", url


def _jobs() -> QuerySet[Any]:
    return Job.objects.using(stream_settings().database).annotate(
        begun_at=Coalesce("queued_at", "started_at", "updated_at")
    )


def _job_line(job: Any) -> tuple[str, str]:
    arguments = f" {json.dumps(job.arguments, ensure_ascii=False)}" if job.arguments else ""
    ended = f"{job.state}: {job.error}" if job.error else job.state
    cancelled = f", cancelled by {job.cancel_asked_by}" if job.cancel_asked_by else ""
    return (
        f"Job {job.pk}, {job.kind}{arguments}: {ended}{cancelled}",
        reverse("admin:pipeline_job_change", args=[job.pk]),
    )


SOURCES: dict[str, Source] = {
    "action": Source("Actions in the admin", "admin.view_logentry", _actions, _USER, "action_time", _action_line),
    "login": Source(
        "Logins of staff", "admin.view_logentry", _logged(change_message__startswith=LOGGED_IN), _USER,
        "action_time", lambda entry: (entry.change_message, ""),
    ),
    "reader": Source(
        "Readers resynced", "streams.view_readerresync",
        lambda: ReaderResync.objects.using(stream_settings().database), "resynced_by", "resynced_at", _resync_line,
    ),
}  # fmt: skip
if installed_apps.has("pipeline"):
    SOURCES["job"] = Source("Jobs", "pipeline.view_job", _jobs, "asked_by", "begun_at", _job_line)


def read_page(wanted: Wanted, limit: int) -> Page:
    """Returns at most ``limit`` lines, newest first."""
    found = {kind: _read(kind, wanted, limit) for kind in wanted.kinds}
    # Below the time to which a source was searched, that source may still have lines. So the lines that other sources have
    # there wait for the next page.
    searched_to = [part.floor_at for part in found.values() if part.floor_at is not None]
    merged: Iterator[Happened] = merge(*(part.rows for part in found.values()), key=lambda row: row.at, reverse=True)
    rows = list(islice((row for row in merged if not searched_to or row.at >= max(searched_to)), limit))
    before = {}
    for kind, part in found.items():
        shown = [row.key for row in rows if row.kind == kind]
        is_read = len(shown) == len(part.rows)
        place = part.floor if is_read and part.floor else shown[-1] if shown else wanted.before.get(kind, _NEWEST)
        before[kind] = 0 if is_read and not part.has_more else place
    return Page(rows, before if any(before.values()) else {})


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows that one source has for a page.

    With filters, at most ``SEARCHED`` rows of the source are searched. If this limit ended the search, ``floor`` is the key
    of the last row that was searched, and ``floor_at`` is its time.
    """

    rows: list[Happened]
    has_more: bool
    floor: int = 0
    floor_at: datetime | None = None


def _read(kind: str, wanted: Wanted, limit: int) -> _Found:
    source, start = SOURCES[kind], wanted.before.get(kind, _NEWEST)
    every = source.rows().filter(pk__lt=start).order_by("-pk")
    if not wanted.filters:
        rows = instances(every[: limit + 1])
        return _Found(_lines(kind, rows[:limit]), len(rows) > limit)
    floor: Any = next(iter(instances(every[SEARCHED - 1 : SEARCHED])), None)
    within = Q() if floor is None else Q(pk__gte=floor.pk)
    within &= Q(**{source.who: wanted.who}) if wanted.who else Q()
    within &= Q(**{f"{source.at}__gte": wanted.begin}) if wanted.begin is not None else Q()
    within &= Q(**{f"{source.at}__lte": wanted.end}) if wanted.end is not None else Q()
    rows = instances(every.filter(within)[: limit + 1])
    lines = _lines(kind, rows[:limit])
    if len(rows) > limit or floor is None:
        return _Found(lines, len(rows) > limit)
    return _Found(lines, True, floor.pk, getattr(floor, source.at, None) or timezone.now())


def _lines(kind: str, rows: list[Any]) -> list[Happened]:
    at, lines = timezone.now(), []
    for row in rows:
        # A time that cannot be read (``instances``) is about that of the row before.
        at = getattr(row, SOURCES[kind].at, None) or at
        lines.append(_line(kind, row, at))
    return lines


def _line(kind: str, row: Any, at: datetime) -> Happened:
    source = SOURCES[kind]
    text, url = source.line(row)
    who = row
    for part in source.who.split("__"):
        who = getattr(who, part)
    return Happened(at, safe_text(str(who)), kind, safe_text(text, _MOST_OF_TEXT), url, row.pk)
