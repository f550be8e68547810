"""Stores samples and changes of status at fixed intervals (steps), from the snapshot that the process shares.

One process of the site writes them (``replsite.one_of_site``). While the database cannot be reached, nothing is written, so
the plots have a gap. The first step after the gap records the outage. Each step writes a limited number of rows
(``replsite.history.samples``), and deletes rows that are too old.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from replsite.history.retention import CHANGES_KEPT, CHANGES_KEPT_DAYS, SPANS
from replsite.history.samples import Change, Subject, changes_between, samples_of, verdicts_of
from replsite.history.site_changes import VERSION, outage, restart, version_change
from replsite.live_rows.shared import SHARED
from replsite.live_rows.snapshot import Snapshot
from replsite.one_of_site import OneOfSite
from streams.db import driver
from streams.runtime.logs import Condition, get_logger
from streams.runtime.version import program_version

log = get_logger(__name__)
STEP_SECONDS = min(span.step_seconds for span in SPANS.values())
_PUT = """
INSERT INTO streams_sample (step_seconds, stream, reader, at, position, waiting, seconds, severity, word)
SELECT step, stream, reader, to_timestamp(floor(extract(epoch FROM %(at)s::timestamptz) / step) * step),
       position, waiting, seconds, severity, word
FROM jsonb_to_recordset(%(rows)s::jsonb) AS now (
    stream text, reader text, position bigint, waiting bigint, seconds float8, severity int, word text)
CROSS JOIN unnest(%(steps)s::int[]) AS step
ON CONFLICT (step_seconds, stream, reader, at) DO UPDATE SET
    position = excluded.position,
    waiting = greatest(streams_sample.waiting, excluded.waiting),
    seconds = greatest(streams_sample.seconds, excluded.seconds),
    word = CASE WHEN excluded.severity >= streams_sample.severity THEN excluded.word ELSE streams_sample.word END,
    severity = greatest(streams_sample.severity, excluded.severity)
"""
_FORGET = """
DELETE FROM streams_sample USING unnest(%(steps)s::int[], %(kept)s::int[]) AS span (step, kept)
WHERE step_seconds = span.step AND at < %(at)s::timestamptz - span.kept * interval '1 second'
"""
_LAST_WORDS = """
SELECT DISTINCT ON (stream, writer, reader) stream, writer, reader, word, severity FROM streams_statuschange
WHERE writer <> '' OR reader <> '' ORDER BY stream, writer, reader, id DESC
"""
_ADD_CHANGES = """
INSERT INTO streams_statuschange (at, stream, writer, reader, was, word, severity, sentence)
SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS change (
    at timestamptz, stream text, writer text, reader text, was text, word text, severity int, sentence text)
"""
_LAST_VERSION = """
SELECT word FROM streams_statuschange WHERE stream = '' AND starts_with(word, %(version)s) ORDER BY id DESC LIMIT 1
"""
_FORGET_CHANGES = """
DELETE FROM streams_statuschange
WHERE at < %(at)s::timestamptz - %(days)s * interval '1 day'
   OR id <= (SELECT max(id) FROM streams_statuschange) - %(most)s
"""


def write_step(cursor: Any, snapshot: Snapshot, before: dict[Subject, tuple[str, int]]) -> list[Change]:
    """Writes the samples and status changes of one moment, in the caller's transaction. Returns the changes.

    ``before`` maps each subject, a tuple (stream, writer, reader), to its (status word, severity) at the previous step.
    It is updated in place.
    """
    at, spans = snapshot.as_of, SPANS.values()
    steps = {"at": at, "steps": [s.step_seconds for s in spans], "kept": [s.kept_seconds for s in spans]}
    cursor.execute(_PUT, steps | {"rows": json.dumps([asdict(row) for row in samples_of(snapshot)])})
    cursor.execute(_FORGET, steps)
    now = verdicts_of(snapshot)
    changes = changes_between(before, now)
    if changes:
        _store_changes(cursor, at, changes)
        cursor.execute(_FORGET_CHANGES, {"at": at, "days": CHANGES_KEPT_DAYS, "most": CHANGES_KEPT})
    before.clear()
    before.update((subject, (str(verdict.word), int(verdict.severity))) for subject, verdict in now.items())
    return changes


def _store_changes(cursor: Any, at: datetime, changes: Iterable[Change]) -> None:
    rows = [
        {
            "at": (change.at or at).isoformat(), "was": change.was, "word": str(change.now.word),
            "severity": change.now.severity, "sentence": change.now.sentence,
            **dict(zip(("stream", "writer", "reader"), change.subject, strict=True)),
        }
        for change in changes
    ]  # fmt: skip
    cursor.execute(_ADD_CHANGES, {"rows": json.dumps(rows)})


def last_statuses(cursor: Any) -> dict[Subject, tuple[str, int]]:
    """Returns ``{(stream, writer, reader): (status word, severity)}``, as stored last for each subject.

    A process that takes over the sampling continues from these statuses, so that it does not record a status twice.
    """
    cursor.execute(_LAST_WORDS)
    return {(stream, writer, reader): (word, severity) for stream, writer, reader, word, severity in cursor.fetchall()}


class Sampler(OneOfSite):
    """A thread that writes a step every ``step_seconds`` while this process holds the lock."""

    def __init__(self, get: Callable[[], Snapshot] = SHARED.get, step_seconds: float = STEP_SECONDS) -> None:
        paused = Condition(log, "history.paused", "history.goes_on")
        super().__init__("history", "replsite.sampler", step_seconds, paused)
        self._get = get
        self._before: dict[Subject, tuple[str, int]] = {}
        self._since: dict[Subject, float] = {}
        #: The time by the monotonic clock at which an outage of the database was first seen.
        self._away_since: float | None = None
        self._server_started_at: datetime | None = None
        self._restarted_at: datetime | None = None
        self._version_is_recorded = False

    def work(self) -> None:
        if self.holds_lock():
            snapshot = self._get()
            with self.cursor as cursor, driver.in_transaction(cursor):
                if news := self._news_of_site(cursor, snapshot.as_of):
                    _store_changes(cursor, snapshot.as_of, news)
                for change in write_step(cursor, snapshot, self._before):
                    stream, writer, reader = change.subject
                    name = {"writer": writer} if writer else {"reader": reader}
                    since, self._since[change.subject] = self._since.get(change.subject), time.monotonic()
                    lasted = {} if since is None else {"after_seconds": round(time.monotonic() - since, 1)}
                    now = str(change.now.word)
                    log.info("status.changed", stream=stream, **name, was=change.was, now=now, **lasted)
        # The process that holds the lock has recorded an outage, whether it is this one or another.
        self._away_since = self._restarted_at = None

    def log_defect(self) -> None:
        log.exception("history.step_failed")

    def failed(self) -> None:
        if self._away_since is None and self._is_away():
            self._away_since = time.monotonic()

    def connected(self, cursor: Any, *, is_held: bool) -> None:
        cursor.execute("SELECT pg_postmaster_start_time()")
        (started_at,) = cursor.fetchone()
        if self._server_started_at not in (None, started_at):
            self._restarted_at = started_at
        self._server_started_at = started_at
        if is_held:
            # The previous holder may have run another version, and have written steps since. Continue from its last stored
            # status words.
            self._version_is_recorded = False
            self._before = last_statuses(cursor)

    def _news_of_site(self, cursor: Any, now: datetime) -> list[Change]:
        found: list[Change] = []
        if not self._version_is_recorded:
            cursor.execute(_LAST_VERSION, {"version": VERSION})
            change = version_change((cursor.fetchone() or ("",))[0], program_version())
            found, self._version_is_recorded = [change] if change else [], True
        if self._away_since is not None:
            return [*outage(now - timedelta(seconds=time.monotonic() - self._away_since), now), *found]
        return found if self._restarted_at is None else [restart(self._restarted_at), *found]

    def _is_away(self) -> bool:
        # A lost connection alone is no outage.
        try:
            driver.direct_connection(self._using, application_name="replsite history").close()
        except driver.DatabaseError:
            return True
        return False
