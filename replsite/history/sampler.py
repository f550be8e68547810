"""Stores samples and changes of status at fixed intervals (steps), from the snapshot that the process shares.

Each serving process runs a sampler, and a session advisory lock lets only one sampler write. If the process of this
sampler ends, the sampler of another process takes over. While the database cannot be reached, nothing is written, so the
plots have a gap. The first step after the gap records the outage. Each step writes a limited number of rows
(``replsite.history.samples``), and deletes rows that are too old.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db import Error as DjangoError
from django.db import connections

from replsite.history.retention import CHANGES_KEPT, CHANGES_KEPT_DAYS, SPANS
from replsite.history.samples import Change, Subject, changes_between, samples_of, verdicts_of
from replsite.history.site_changes import VERSION, outage, restart, version_change
from replsite.live_rows.shared import SHARED
from replsite.live_rows.snapshot import Snapshot
from streams.conf import stream_settings
from streams.db import driver
from streams.db.schema_mark import marked_lock
from streams.reading.trust import stranger_with_lock
from streams.runtime.logs import Condition, get_logger
from streams.runtime.version import program_version

log = get_logger(__name__)
STEP_SECONDS = min(span.step_seconds for span in SPANS.values())
_KEY = marked_lock("'replsite.sampler'")
_LOCK = f"SELECT pg_try_advisory_lock(key), key, pg_postmaster_start_time() FROM (SELECT {_KEY} AS key) AS of_site"
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
WHERE stream <> '' ORDER BY stream, writer, reader, id DESC
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


class Sampler:
    """A thread that writes a step every ``step_seconds`` while this process holds the lock."""

    def __init__(self, get: Callable[[], Snapshot] = SHARED.get, step_seconds: float = STEP_SECONDS) -> None:
        self._get = get
        self._step_seconds = step_seconds
        self._using = stream_settings().database
        self._stopping = threading.Event()
        self._connection: Any = None
        self._before: dict[Subject, tuple[str, int]] = {}
        self._since: dict[Subject, float] = {}
        #: The time by the monotonic clock at which an outage of the database was first seen.
        self._away_since: float | None = None
        self._server_started_at: datetime | None = None
        self._restarted_at: datetime | None = None
        self._version_is_recorded = False
        self._paused = Condition(log, "history.paused", "history.goes_on")
        self._thread = threading.Thread(target=self._run, name="replsite-sampler", daemon=True)

    def start(self) -> None:
        """Starts the thread. It writes the first step at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread, and waits for the step in progress."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
                # Waits until the next multiple of the step by the clock, so that the steps of all processes coincide.
                self._stopping.wait(self._step_seconds - time.time() % self._step_seconds)
        finally:
            self._close()
            connections.close_all()  # this thread's own

    def _step(self) -> None:
        try:
            if self._may_write():
                snapshot = self._get()
                with self._connection.cursor() as cursor, driver.in_transaction(cursor):
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
            self._paused.ends()
        except (DjangoError, driver.DatabaseError) as error:
            self._paused.begins(error)
            self._close()
            if self._away_since is None and self._is_away():
                self._away_since = time.monotonic()
        except Exception as error:  # a bug in one step must not end the history of this process
            if not self._paused.is_on:
                log.exception("history.step_failed")
            self._paused.begins(error)
            self._close()

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

    def _may_write(self) -> bool:
        """Takes the sampler's lock if it is free. Returns true if this process holds the lock.

        The lock is held until the connection that took it closes. Raises ``DatabaseError`` if the lock is held by a
        session whose role has no right to write positions.
        """
        if self._connection is None:
            self._connection = driver.direct_connection(self._using, application_name="replsite history")
            with self._connection.cursor() as cursor:
                cursor.execute(_LOCK)
                is_held, key, started_at = cursor.fetchone()
                if self._server_started_at not in (None, started_at):
                    self._restarted_at = started_at
                self._server_started_at = started_at
                stranger = "" if is_held else stranger_with_lock(cursor, key)
            if stranger:
                raise driver.DatabaseError(
                    f"{stranger} holds the lock of the process that writes the history, and that role may not write. "
                    f"End it: pg_terminate_backend"
                )
            if not is_held:
                self._close()
                return False
            self._version_is_recorded = False  # the previous holder of the lock may have run another version
            with self._connection.cursor() as cursor:
                # The previous holder may have written steps since. Continue from its last stored status words.
                self._before = last_statuses(cursor)
        return True

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(driver.DatabaseError):
                self._connection.close()
            self._connection = None
