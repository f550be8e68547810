"""``manage.py jobs``: lists the jobs of this site; shows, cancels, resumes or queues a job; lists the kinds of job.

Exit status 0: done; 1: there is no such job, or the action is not possible in the job's state; 2: unusable arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.spark.job_steps import spark_words
from streams.conf import stream_settings
from streams.jobs.command import as_command_errors
from streams.jobs.errors import UnusableArguments
from streams.jobs.operation import operations
from streams.jobs.rows import CancelOutcome, cancel_job
from streams.jobs.run import queue_job, resume_job
from streams.jobs.view import JobView, job_view, job_views
from streams.runtime.command_line import SiteCommand, asked_by
from streams.runtime.text import safe_text

__all__ = ["Command"]

_STYLES = {"running": "blue", "done": "green", "failed": "bold red", "killed": "bold red", "cancelled": "yellow"}
_MOST = 1_000
_MOST_OF_ERROR = 200


class Command(SiteCommand):
    help = "List the jobs of this site; cancel one, or queue or resume one for manage.py runjobs."

    examples = (
        ("jobs", "the newest 20, what is at work first"),
        ("jobs --json | jq 'select(.state == \"failed\")'", "those that failed"),
        ("jobs show 12", "all that is known of it, figures before and after"),
        ("jobs kinds", "what can be queued"),
        ("jobs queue censor '{\"days\": 7}'", "for manage.py runjobs"),
        ("jobs cancel 12", "it stops at its next step"),
        ("jobs resume 12", "one that failed, was cancelled or was killed, for manage.py runjobs"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object a line")
        parser.add_argument("--limit", type=int, default=20, metavar="N", help="the newest N (default: 20)")
        actions = parser.add_subparsers(dest="action", metavar="ACTION")
        show = actions.add_parser("show", help="all that is known of one job, figures before and after")
        show.add_argument("job", type=int, metavar="JOB", help="number of the job")
        show.add_argument("--json", action="store_true", dest="show_json", help="as one JSON object")
        cancel = actions.add_parser("cancel", help="end a job that waits; ask one at work to stop at its next step")
        cancel.add_argument("job", type=int, metavar="JOB", help="number of the job")
        resume = actions.add_parser("resume", help="queue a job again that failed, was cancelled or was killed")
        resume.add_argument("job", type=int, metavar="JOB", help="number of the job")
        queue = actions.add_parser("queue", help="leave a job for manage.py runjobs")
        queue.add_argument("kind", metavar="KIND", help="one of those that jobs kinds lists")
        queue.add_argument("arguments", nargs="?", default="{}", metavar="JSON", help="an object; default: {}")
        actions.add_parser("kinds", help="what can be queued")

    def handle(self, *args: Any, **options: Any) -> None:
        using = stream_settings().database
        with as_command_errors():
            match options["action"]:
                case "show":
                    self._show(options["job"], options["show_json"], using)
                case "cancel":
                    self._cancel(options["job"], using)
                case "resume":
                    job = resume_job(options["job"], asked_by(), using)
                    self.stdout.write(f"job {job.pk} is queued again; manage.py runjobs carries it out")
                case "queue":
                    job = queue_job(options["kind"], _object(options["arguments"]), asked_by(), using)
                    self.stdout.write(f"job {job.pk} is queued; manage.py runjobs carries it out")
                case "kinds":
                    for name, kind in operations().items():
                        self.stdout.write(f"{name}: {kind.help}")
                case _:
                    self._list(options["limit"], options["json"], using)

    def _show(self, job: int, as_json: bool, using: str) -> None:
        view = job_view(job, using)
        if as_json:
            self.stdout.write(json.dumps(view.as_json(), ensure_ascii=False))
            return
        row = view.job
        started, ended = (at.isoformat(" ", "seconds") if at else "" for at in (row.started_at, row.finished_at))
        shown = {
            "kind": row.kind, "state": view.word, "arguments": json.dumps(row.arguments, ensure_ascii=False),
            "asked by": row.asked_by, "progress": view.progress, "began": started, "ended": ended, "took": view.duration_text,
            "error": row.error, "summary": json.dumps(row.summary, ensure_ascii=False) if row.summary is not None else "",
        }  # fmt: skip
        for name, text in shown.items():
            if text:
                self.stdout.write(f"{name:<10} {safe_text(text, None)}")
        for figure in view.figures:
            change = f"  ({figure.change})" if figure.change else ""
            self.stdout.write(f"{figure.name:<24} {figure.before or '-'} -> {figure.after or '-'}{change}")
        for words in spark_words(row.summary):
            self.stdout.write(f"{'Spark':<10} {words}")

    def _cancel(self, job: int, using: str) -> None:
        outcome = cancel_job(job, asked_by(), using)
        if outcome is CancelOutcome.OVER:
            raise CommandError(f"job {job} was over already; nothing was cancelled.", returncode=1)
        self.stdout.write(
            f"job {job} is {outcome}" if outcome is CancelOutcome.CANCELLED else f"job {job} was {outcome}"
        )

    def _list(self, limit: int, as_json: bool, using: str) -> None:
        if not 1 <= limit <= _MOST:
            raise UnusableArguments(f"--limit must be from 1 to {_MOST:,}, not {limit}.")
        views = job_views(limit, using)
        if as_json:
            for view in views:
                self.stdout.write(json.dumps(view.as_json(), ensure_ascii=False))
        elif views:
            self._table(views)
        else:
            self.stdout.write("No job has ever run here.")

    def _table(self, views: Sequence[JobView]) -> None:
        if not self.stdout.isatty():
            for view in views:
                self.stdout.write("  ".join(part for part in view.cells() if part))
            return
        table = Table("job", "kind", "state", "progress", "asked by", "began", "took")
        for view in views:
            job, kind, word, *rest = view.cells()
            table.add_row(job, Text(kind), Text(word, _STYLES.get(word, "")), *map(Text, rest))
            if view.job.error:
                table.add_row("", "", "", Text(safe_text(view.job.error, None)[:_MOST_OF_ERROR]))
        Console().print(table)


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UnusableArguments(f"The arguments are no JSON: {error}.") from error
    except RecursionError as error:
        raise UnusableArguments("The arguments are nested deeper than any kind of job needs.") from error
    if not isinstance(found, dict):
        raise UnusableArguments('The arguments must be a JSON object, such as {"days": 7}.')
    return found
