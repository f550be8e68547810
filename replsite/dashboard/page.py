"""Builds the live page as data (pure): its health, its figures, and the groups of rows of its tables.

The page in the browser (``fragments``) and ``manage.py streams`` are both made from this data, so they cannot disagree.
The rows and columns of a table are in ``replsite/live_rows``, in the module of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from replsite.dashboard.summary import summary_tiles
from replsite.live_rows.cells import Group, Table, Tile
from replsite.live_rows.jobs import JOBS, job_groups
from replsite.live_rows.readers import READERS, reader_groups
from replsite.live_rows.snapshot import Snapshot
from replsite.live_rows.storage import ROOMS, STORAGE, room_groups, storage_groups
from replsite.live_rows.streams import STREAMS, stream_groups
from replsite.live_rows.workers import WORKERS, worker_groups
from replsite.status.words import Health, Problem
from streams.runtime.amounts import count

#: Number of problems that are named below the worst one. All of them are in the tables.
PROBLEMS_SHOWN = 4
#: Number of effects that are named below a problem.
EFFECTS_SHOWN = 3
#: The tables of the page in their order.
TABLES: Mapping[str, Table] = {
    "streams": STREAMS,
    "readers": READERS,
    "jobs": JOBS,
    "storage": STORAGE,
    "rooms": ROOMS,
    "workers": WORKERS,
}


class Page(TypedDict):
    """The live page of one snapshot.

    The figures of ``storage`` and ``rooms`` are read less often than the others; ``storage_at`` is their time. Viewers need
    a permission to see ``rooms``.
    """

    as_of: str
    storage_at: str
    health: dict[str, Any]
    summary: list[Tile]
    streams: list[Group]
    readers: list[Group]
    jobs: list[Group]
    storage: list[Group]
    rooms: list[Group]
    workers: list[Group]


def live_page_data(snapshot: Snapshot, *, is_whole: bool = False) -> Page:
    """Returns the page of a snapshot. Rows keep the snapshot's order, worst first.

    With ``is_whole``, no reader is left out.
    """
    storage = snapshot.storage
    return {
        "as_of": snapshot.as_of.isoformat(),
        "storage_at": storage.as_of.isoformat() if storage is not None else "",
        "health": _health(snapshot.health),
        "summary": summary_tiles(snapshot),
        "streams": stream_groups(snapshot.streams),
        "readers": reader_groups(snapshot.readers, is_whole=is_whole),
        "jobs": job_groups(snapshot.jobs),
        "storage": storage_groups(storage),
        "rooms": room_groups(storage.rooms if storage is not None else ()),
        "workers": worker_groups(snapshot.workers),
    }


def _health(health: Health) -> dict[str, object]:
    """Returns the health of the site: the worst problem as a sentence, a few other problems, and the number of those left out.

    The effects of a problem are listed below it. The key ``said`` has the text for screen readers. This text has no ages
    and lags, because they change all the time.
    """
    effects: dict[str, list[str]] = {}
    for problem in health.problems:
        if problem.cause:
            effects.setdefault(problem.cause, []).append(f"{problem.words}.")
    causes = [problem for problem in health.problems if not problem.cause]
    first, others = causes[:1], causes[1:]
    problems = [_shown_problem(problem, effects) for problem in others[:PROBLEMS_SHOWN]]
    if more := len(others) - len(problems):
        problems.append({"text": f"And {count(more)} more, in the tables below."})
    worst = f": {first[0].words}" if first else ""
    return {
        "said": f"{health.word}{worst}"
        + (f", and {count(len(health.problems) - 1)} more" if health.problems[1:] else ""),
        "word": str(health.word),
        "first": {**(_shown_problem(first[0], effects) if first else {}), "text": health.sentence},
        "problems": problems,
    }


def _shown_problem(problem: Problem, effects: Mapping[str, Sequence[str]]) -> dict[str, object]:
    verdict, found = problem.verdict, list(effects.get(problem.subject, ()))
    if more := len(found) - EFFECTS_SHOWN:
        found[EFFECTS_SHOWN:] = [f"And {count(more)} more."] * (more > 0)
    return {
        "text": f"{problem.words}: {verdict.sentence}",
        "command": verdict.command if verdict.command in verdict.sentence else "",
        "actions": verdict.actions,
        "about": problem.about,
        "effects": found,
    }
