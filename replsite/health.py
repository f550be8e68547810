"""Answers health probes: whether this process can serve, and whether the whole site is well.

If not, the answer names the part at fault and a remedy. ``ready`` checks the parts that serving needs. ``summary`` adds
the state of the streams, writers and readers, from the same snapshot as the live page. A problem of one of them needs
an operator; sending requests to another server does not help. Both functions hang as long as the database does. Callers
that must answer in time use ``replsite.http.deadline``. The sentences name hosts, processes and clients, so they are
for operators. ``health_views`` hides these names from other clients.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.migrations.executor import MigrationExecutor

from replsite.humanize import byte_size
from replsite.snapshot.shared import SHARED
from replsite.snapshot.types import Snapshot
from replsite.status.verdicts import HealthWord, Severity
from streams.conf import stream_settings
from streams.db import driver
from streams.replication.server.broadcaster import redis_trouble, silent_seconds

__all__ = ["Part", "Report", "not_answering", "ready", "summary"]

#: With less free space than this share of the reserve, a process cannot serve.
FULL_SHARE = 1 / 8
#: From this share on, the queue of notifications is reported. PostgreSQL itself logs a warning from one half on.
QUEUE_SHARE = 0.5
#: The broadcaster polls once a second. A database that is away is reported as such, not here.
BROADCASTER_SILENT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the site that must work: its state, and a sentence that says what to do if the part does not work."""

    name: str
    well: bool
    sentence: str
    word: str = ""
    """The status word, if the part has one."""


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to a probe. ``well`` is true only if every part is well."""

    well: bool
    sentence: str
    parts: tuple[Part, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON values."""
        return asdict(self)


def _report(parts: list[Part], when_well: str) -> Report:
    bad = [part for part in parts if not part.well]
    sentence = f"{bad[0].name}: {bad[0].sentence}" if bad else when_well
    return Report(not bad, sentence, tuple(parts))


def _database() -> Part:
    alias = stream_settings().database
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT current_setting('server_version')")
            return Part("database", True, f"PostgreSQL {cursor.fetchone()[0]} answers.")
    except Error as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Part("database", False, f"It cannot be used ({reason}). Start the server, or correct DATABASE_URL.")


def _notifications() -> Part:
    """Checks PostgreSQL's queue of notifications. If the queue is full, no position can be announced."""
    try:
        with connections[stream_settings().database].cursor() as cursor:
            usage = driver.notify_queue_usage(cursor)
    except Error as error:
        return Part("notifications", False, f"Their queue cannot be read ({str(error).strip()}).")
    sentence = f"The server's queue of notifications is {usage:.0%} full".replace("%", " %")
    if usage < QUEUE_SHARE:
        return Part("notifications", True, f"{sentence}.")
    do = "End the session that LISTENs and keeps a transaction open; the server's log names it"
    return Part("notifications", False, f"{sentence}: when it is full, nothing is announced. {do}.", "full")


def _migrations() -> Part:
    try:
        executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except Error as error:
        return Part("migrations", False, f"They cannot be read ({error}).")
    if plan:
        names = ", ".join(f"{step.app_label}.{step.name}" for step, _ in plan[:3])
        return Part("migrations", False, f"{len(plan)} not applied ({names}). Run: manage.py migrate.")
    return Part("migrations", True, "All are applied.")


def _disk(share: float = 1.0) -> Part:
    """Checks the free space of the data directory's disk, which holds the embedded database, archives and imports.

    ``share`` is the fraction of ``REPLSITE_DISK_RESERVE_BYTES`` that must be free.
    """
    folder = Path(getattr(settings, "REPLSITE_DATA_DIR", "."))
    wanted = int(getattr(settings, "REPLSITE_DISK_RESERVE_BYTES", 0) * share)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < wanted:
        return Part(
            "disk",
            False,
            f"{byte_size(free)} are free at {folder}, less than {byte_size(wanted)}. Remove old archives and imports, make the "
            "disk larger, or see the how-to about databases that are too big.",
            "full",
        )
    return Part("disk", True, f"{byte_size(free)} are free at {folder}.")


def _broadcaster() -> list[Part]:
    """Checks the broadcaster, which sends facts to the replication clients of this process.

    Returns an empty list if this process runs no broadcaster.
    """
    idle_seconds = silent_seconds()
    if idle_seconds is None:
        return []
    if idle_seconds > BROADCASTER_SILENT_SECONDS:
        what = "It has ended" if math.isinf(idle_seconds) else f"It has not looked for facts for {idle_seconds:.0f} s"
        sentence = f"{what}, so clients of this process get none. Read its log, and start it again."
        return [Part("broadcaster", False, sentence, "gone")]
    return [Part("broadcaster", True, "It looks for facts.")]


def _redis() -> list[Part]:
    """Checks that replication commands are published on Redis, by this server or by another one.

    Returns an empty list if this process does not serve Redis.
    """
    trouble = redis_trouble()
    if trouble is None:
        return []
    if trouble:
        return [Part("redis", False, f"Followers on Redis get no facts: {trouble}.", "silent")]
    return [Part("redis", True, "This server publishes, or another one does.")]


def not_answering(seconds: float) -> Report:
    """Returns the report for a database that has not answered for ``seconds``."""
    sentence = (
        f"It has not answered for {seconds:.0f} s. Is its host there, is it overloaded, does a session hold a lock on its "
        "tables?"
    )
    return _report([Part("database", False, sentence, "no answer")], "")


def _positions(get: Callable[[], Snapshot]) -> tuple[Part, Snapshot | None]:
    try:
        return Part("positions", True, "Positions of all streams can be read."), get()
    except Error as error:
        return Part(
            "positions", False, f"They cannot be read ({str(error).strip()}). See manage.py check_streams."
        ), None


def _ready(get: Callable[[], Snapshot]) -> tuple[list[Part], Snapshot | None]:
    parts = [_database()]
    if parts[-1].well:
        parts.append(_migrations())
    if not parts[-1].well:
        return parts, None
    positions, snapshot = _positions(get)
    return [*parts, positions, *_broadcaster()], snapshot


def ready(get: Callable[[], Snapshot] = SHARED.get) -> Report:
    """Returns a report on whether this process can serve."""
    return _report([*_ready(get)[0], _disk(FULL_SHARE)], "This process can serve.")


def summary(get: Callable[[], Snapshot] = SHARED.get) -> Report:
    """Returns a report on this process, and on the streams, writers and readers of the cluster."""
    parts, snapshot = _ready(get)
    parts += [_disk(), *([_notifications()] if parts[0].well else []), *_redis()]
    if snapshot is None:
        return _report(parts, "")
    for problem in snapshot.health.problems:
        parts.append(
            Part(
                problem.subject,
                problem.verdict.severity < Severity.WRONG,
                f"{problem.verdict.word}: {problem.verdict.sentence}",
                str(problem.verdict.word),
            )
        )
    report = _report(parts, snapshot.health.sentence)
    if snapshot.health.word == HealthWord.WRONG:
        return Report(False, snapshot.health.sentence if report.well else report.sentence, report.parts)
    return report
