"""Operations: what is done to a site by name, at once by a command, or as a job by ``manage.py runjobs``.

An operation is one file in the package ``operations`` of an app. It declares the arguments, and has the dry run, the work
and the words. The options of the command, the form in the admin, the HTTP API and the check of arguments are made of it::

    @operation
    class PurgeDrafts(Operation):
        name = "purge drafts"
        help = "Delete drafts that nobody has touched for some days."
        arguments = (Argument("days", Type.NUMBER, "for so many days", bounds=(1, 365), default=30), dry_run("only count"), JSON)
        commands = (Words("purge drafts", "Delete old drafts.", "purge drafts --days 7 --dry-run"),)

        def plan(self, run):
            return {"deleted": due(run.arguments["days"]).count()}

        def run(self, run):
            with run.stage("drafts", None, "drafts") as count:
                ...  # small transactions; count.add(n) after each
            return {"deleted": count()}

The modules are imported when operations are first asked for, because most commands need none of them.
"""

from __future__ import annotations

import json
import pkgutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from django.apps import apps

from streams.jobs.arguments import DRY_RUN, Argument
from streams.jobs.errors import UnknownKind, UnusableArguments
from streams.jobs.job_run import JobRun
from streams.jobs.models import Job

__all__ = ["Operation", "Words", "discover", "find_operation", "operation", "operations", "register"]


@dataclass(frozen=True)
class Words:
    """The words after ``manage.py`` that carry out an operation, such as ``purge history``."""

    words: str
    about: str
    """The help of the command, in sentences."""
    example: str
    given: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the operation that these words have settled."""
    without: Collection[str] = ()
    """Names of arguments that these words do not take."""


class Operation:
    """The declaration, the dry run, the work and the words of one operation."""

    name = ""
    """The kind of its jobs, which their rows store, such as ``censor`` or ``purge history``."""
    help = ""
    """What it does, in one sentence."""
    arguments: Sequence[Argument] = ()
    commands: Sequence[Words] = ()
    changes_nothing = False
    staging_prefix: str | None = None
    """The names of the staging tables begin with this prefix and the job's number. While these tables exist, the job's row
    is kept."""

    def check(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Checks ``given``, and returns the arguments with all defaults filled in. Raises ``UnusableArguments``.

        Does not query the database.
        """
        known = [arg for arg in self.arguments if arg.stored]
        if unknown := sorted(set(given) - {arg.name for arg in known}):
            names = ", ".join(arg.name for arg in known) or "none"
            raise UnusableArguments(f"Unknown arguments: {', '.join(map(str, unknown))}. There are: {names}.")
        checked = {arg.name: arg.value(given) for arg in known}
        self.check_together(checked)
        return {arg.name: checked[arg.name] for arg in known if not arg.omitted or checked[arg.name] is not None}

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` if the arguments contradict each other. May compute an argument from other arguments."""

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """Checks in the database whether the work can begin with the checked ``arguments``. Changes nothing.

        Raises the errors that the work would raise when it begins. So a mistyped argument is reported before a job is
        queued.
        """

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run, which changes nothing. Returns a summary with the figures that ``run`` would return."""
        raise NotImplementedError(f"{self.name} takes no {DRY_RUN}.")

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Does the work. Returns the summary, which must be serializable as JSON."""
        raise NotImplementedError(self.name)

    def lines(self, summary: Mapping[str, Any]) -> Iterable[str]:
        """Returns the summary as lines of text for people."""
        return [json.dumps(summary)]

    def check_outcome(self, arguments: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Raises an error if the outcome of the work is not satisfactory. Called by the command, after the work.

        Raises ``UnusableArguments`` for names that do not exist, and another ``SiteError`` if not everything could be mended.
        """

    # --- what only the command can do ---------------------------------------------------------------------------------

    def at_once(self, options: Mapping[str, Any]) -> str | None:
        """Does what a command's options ask for in place of a job, and returns a line that says so. None: nothing was asked."""
        return None

    def work_for(self, options: Mapping[str, Any]) -> Callable[[JobRun], Mapping[str, Any]] | None:
        """Returns what the command does in place of ``run``, because it may do more than a queued job. None: the same."""
        return None


_operations: dict[str, Operation] = {}
_discovered: set[str] = set()
_discovering = threading.RLock()
_Class = TypeVar("_Class", bound=type[Operation])


def register(*found: Operation) -> None:
    _operations.update({operation.name: operation for operation in found})


def operation(declared: _Class) -> _Class:
    """Makes an operation known: a decorator of its class."""
    register(declared())
    return declared


def discover() -> None:
    """Imports the modules of all apps' packages ``operations``, once.

    If thread B asks while thread A imports, B waits. Otherwise it would find a part of the operations.
    """
    with _discovering:
        for app in apps.get_app_configs():
            if app.name not in _discovered:
                for module in pkgutil.iter_modules([str(Path(app.path, "operations"))]):
                    import_module(f"{app.name}.operations.{module.name}")
                _discovered.add(app.name)


def operations() -> Mapping[str, Operation]:
    """Returns all operations by name, in the order of their names. None, if the site has no table of jobs."""
    if Job._meta.app_config is None:
        return {}
    discover()
    return dict(sorted(_operations.items()))


def find_operation(name: str) -> Operation:
    """Returns an operation by its name. Raises ``UnknownKind``."""
    known = operations()
    if name not in known:
        raise UnknownKind(f"There is no kind of job {name!r}; there are: {', '.join(known) or 'none'}.")
    return known[name]
