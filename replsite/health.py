"""Health: is this process up, can it serve, and is everything well? Each answer says which part is not and what to do.

``/health/live`` asks nothing. ``/health/ready`` asks the parts that serving needs. ``/health`` and ``manage.py health`` add the
streams' own state from the same snapshot as the page, so 503 there means that an operator is wanted, not that traffic
should go elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse

from replsite.shared_snapshot import SHARED
from replsite.snapshot_views import Snapshot
from replsite.status import HealthWord, Severity
from streams.conf import stream_settings

__all__ = ["Part", "Report", "health_view", "live_view", "ready", "ready_view", "summary"]


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that must work: whether it does, and a sentence that tells what to do when it does not."""

    name: str
    well: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to a probe; ``well`` only if every part is."""

    well: bool
    sentence: str
    parts: tuple[Part, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
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
    return [*parts, positions], snapshot


def ready(get: Callable[[], Snapshot] = SHARED.get) -> Report:
    """Whether this process can serve."""
    return _report(_ready(get)[0], "This process can serve.")


def summary(get: Callable[[], Snapshot] = SHARED.get) -> Report:
    """Is everything well: this process, and the streams, writers and readers of the cluster."""
    parts, snapshot = _ready(get)
    if snapshot is None:
        return _report(parts, "")
    for problem in snapshot.health.problems:
        parts.append(
            Part(
                problem.subject,
                problem.verdict.severity < Severity.WRONG,
                f"{problem.verdict.word}: {problem.verdict.sentence}",
            )
        )
    report = _report(parts, snapshot.health.sentence)
    if snapshot.health.word == HealthWord.WRONG:
        return Report(False, snapshot.health.sentence if report.well else report.sentence, report.parts)
    return report


def _answer(report: Report) -> JsonResponse:
    response = JsonResponse(report.as_json(), status=200 if report.well else 503)
    response["Cache-Control"] = "no-store"
    return response


def live_view(request: HttpRequest) -> JsonResponse:
    """``/health/live``: the process runs its loop."""
    return _answer(Report(True, "This process is up."))


def ready_view(request: HttpRequest) -> JsonResponse:
    """``/health/ready``: 503 while this process cannot serve."""
    return _answer(ready())


def health_view(request: HttpRequest) -> JsonResponse:
    """``/health``: 503 while anything needs an operator."""
    return _answer(summary())
