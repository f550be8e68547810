"""Answers health probes: whether this process can serve, and whether the whole site is well.

If a part of the site is not well, the answer names this part and a remedy. ``ready`` checks the parts that serving needs.
``summary`` adds the state of the streams, writers and readers, from the same snapshot as the live page. A problem of a
stream, writer or reader needs an operator. To send requests to another server does not help then. While the database does
not answer, ``ready`` and ``summary`` block. Callers that must answer in time use ``replsite.http.deadline``. The
sentences name hosts, processes and clients, so they are for operators. ``health_views`` hides these names from other
clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from replsite.conf import site_settings
from replsite.disk import disk_free, disk_reserve
from replsite.live_rows.shared import SHARED
from replsite.live_rows.snapshot import Snapshot
from replsite.live_rows.verdicts import DISK_FULL, disk_verdict
from replsite.postgres.errors import DiskFull
from replsite.postgres.server import EmbeddedServer
from replsite.status.words import HealthWord, Severity
from streams.conf import stream_settings
from streams.db import driver
from streams.replication.server.probed import silent_seconds
from streams.runtime.amounts import byte_size, duration

#: The engine of the embedded server.
EMBEDDED = "replsite.postgres.backend"
#: Words of the part ``database`` if the embedded server cannot be used.
DISK_IS_FULL, NOT_STARTED = "disk full", "not started"
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
            if refusal := driver.wrong_encoding(connections[alias].connection):
                return Part("database", False, refusal)
            return Part("database", True, f"PostgreSQL {cursor.fetchone()[0]} answers.")
    except Error as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if settings.DATABASES[alias]["ENGINE"] == EMBEDDED:
            return _embedded_away(error, reason)
        return Part(
            "database",
            False,
            f"It cannot be used ({reason}). Start the server, or correct DATABASES (or DATABASE_URL).",
        )


def _embedded_away(error: Error, reason: str) -> Part:
    # No operator starts this server: the processes that use it do.
    server = EmbeddedServer(Path(site_settings().data_dir))
    if isinstance(error.__cause__, DiskFull) or server.is_disk_full():
        sentence = f"The disk of {server.folder} is full, so the embedded server cannot run. Free space there"
        return Part("database", False, f"{sentence}; it starts again by itself. Its log: {server.log}.", DISK_IS_FULL)
    sentence = (
        f"The embedded server could not start, or does not answer ({reason}). Mend what its log names: {server.log}"
    )
    return Part("database", False, f"{sentence}. It starts again by itself.", NOT_STARTED)


def _notifications() -> Part:
    # If the queue is full, no position can be announced.
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
    connection = connections[DEFAULT_DB_ALIAS]
    try:
        # A plan imports all migrations. If each of them is applied by its name, there is nothing to plan.
        if _named_migrations() <= MigrationRecorder(connection).applied_migrations().keys():
            return Part("migrations", True, "All are applied.")
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except Error as error:
        return Part("migrations", False, f"They cannot be read ({error}).")
    if plan:
        names = ", ".join(f"{step.app_label}.{step.name}" for step, _ in plan[:3])
        return Part("migrations", False, f"{len(plan)} not applied ({names}). Run: manage.py migrate.")
    return Part("migrations", True, "All are applied.")


def _named_migrations() -> set[tuple[str, str]]:
    found = set()
    for app in apps.get_app_configs():
        module, _ = MigrationLoader.migrations_module(app.label)
        spec = None if module is None else find_spec(module)
        for file in iter_modules((spec and spec.submodule_search_locations) or ()):  # None stands for all modules
            if not file.ispkg and file.name[0] not in "_~":  # as Django's loader does
                found.add((app.label, file.name))
    return found


def _disk(share: float = 1.0) -> Part:
    """Checks the free space of the data directory's disk, which holds the embedded database, archives and imports.

    ``share`` is the fraction of ``REPLSITE_DISK_RESERVE_BYTES`` that must be free.
    """
    folder, free = disk_free()
    if full := disk_verdict(str(folder), free, int(disk_reserve() * share)):
        return Part("disk", False, full.sentence, full.word)
    return Part("disk", True, f"{byte_size(free)} are free at {folder}.")


def _broadcaster() -> list[Part]:
    idle_seconds = silent_seconds()
    if idle_seconds is None:
        return []
    if idle_seconds > BROADCASTER_SILENT_SECONDS:
        is_ended = math.isinf(idle_seconds)
        state = "It has ended" if is_ended else f"It has not looked for facts for {duration(idle_seconds)}"
        sentence = f"{state}, so clients of this process get none. Read its log, and start it again."
        return [Part("broadcaster", False, sentence, "gone")]
    return [Part("broadcaster", True, "It looks for facts.")]


def not_answering(seconds: float) -> Report:
    """Returns the report for a database that has not answered for ``seconds``."""
    sentence = (
        f"It has not answered for {duration(seconds)}. Is its host there, is it overloaded, does a session hold a lock on its "
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
    return _report([*_ready(get)[0], _disk(FULL_SHARE)], "This process can serve.")


def summary(get: Callable[[], Snapshot] = SHARED.get) -> Report:
    """Returns a report on this process, and on the streams, writers and readers of the cluster."""
    parts, snapshot = _ready(get)
    parts += [_disk(), *([_notifications()] if parts[0].well else [])]
    if snapshot is None:
        return _report(parts, "")
    for problem in snapshot.health.problems:
        if problem.verdict.word == DISK_FULL:
            continue  # the part "disk" reports it, from a fresh reading
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
