#!/usr/bin/env python
"""Prints the files that one call runs through, in the order in which it enters them, and how often it changes file.

``script/path_of_a_call.py [append] [persist] [--json]``. *append* is ``Stream.append`` of one fact. *persist* stores one
message in a small room. Both run on a PostgreSQL of their own in a temporary folder. Each runs several times before it is
measured, so that connections, prepared statements and caches are there. Only the calling thread is measured, and only
files of our apps.

*calls* are entries into functions, comprehensions and resumed generators, as the interpreter profiles them. *changes* is
how often control passes into another file, by a call or a return. The figures are a rough gauge of the design: a change
of file should be a change of subject.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = ("streams", "state", "events", "pipeline", "replsite")
WARM_UP = 5


class CallPath(NamedTuple):
    """The path of one call through our code, in order."""

    calls: list[tuple[str, str]]
    """File below the project, and qualified name of the function."""
    changes: int
    """How often control passed into another file, by a call or a return."""

    @property
    def files(self) -> list[str]:
        """Returns the files in the order in which they were first entered."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    def figures(self) -> dict[str, Any]:
        """Returns the figures that ``--json`` prints."""
        return {"files": self.files, "changes": self.changes, "calls": len(self.calls)}


def path_of(work: Callable[[], object]) -> CallPath:
    """Runs ``work`` once in this thread and returns its path."""
    calls: list[tuple[str, str]] = []
    entered: list[str] = []  # the file that runs after each call and each return
    folders = tuple(f"{PROJECT / room}{os.sep}" for room in ROOMS)

    def profile(frame: FrameType | None, event: str, _: object) -> None:
        if frame is None or event not in ("call", "return") or not frame.f_code.co_filename.startswith(folders):
            return
        if event == "call":
            calls.append((str(Path(frame.f_code.co_filename).relative_to(PROJECT)), frame.f_code.co_qualname))
        else:  # a return may pass through Django's frames before it reaches one of ours
            frame = frame.f_back
            while frame is not None and not frame.f_code.co_filename.startswith(folders):
                frame = frame.f_back
        if frame is not None:
            entered.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return CallPath(calls, sum(one != other for one, other in pairwise(entered)))


# --- the calls --------------------------------------------------------------------------------------------------------


def append() -> CallPath:
    """Returns the path of an append of one fact, outside of a transaction."""
    from streams import registry  # noqa: PLC0415 - after Django is set up
    from streams.catalog.models import CacheInvalidation  # noqa: PLC0415

    stream = registry.get("caches")
    for _ in range(WARM_UP):
        stream.append(CacheInvalidation(cache_name="measured", keys=["key"]))
    fact = CacheInvalidation(cache_name="measured", keys=["key"])
    return path_of(lambda: stream.append(fact))


def persist() -> CallPath:
    """Returns the path of storing one message in a room of two members, on top of the message before it."""
    from events.persist import batch  # noqa: PLC0415 - after Django is set up
    from script.benchmarks.persist import BenchRoom, stored  # noqa: PLC0415

    room = BenchRoom(members=2)
    stored([room.set_up(), *(room.messages(1) for _ in range(WARM_UP))])()
    (message,) = room.messages(1)
    incoming = [batch.Incoming(message.json, message.room_version)]
    return path_of(lambda: batch.persist(incoming, verified=True))


CALLS: dict[str, Callable[[], CallPath]] = {"append": append, "persist": persist}


# --- the program ------------------------------------------------------------------------------------------------------


def printed(name: str, path: CallPath) -> str:
    """Returns a path as text: the figures, then a line for each file with the functions called there."""
    lines = [f"{name}: {len(path.files)} files, {path.changes} changes of file, {len(path.calls)} calls"]
    for file in path.files:
        functions = [function for place, function in path.calls if place == file]
        lines.append(f"  {file}: {', '.join(dict.fromkeys(functions))}")
    return "\n".join(lines)


def measured(names: Sequence[str]) -> dict[str, CallPath]:
    """Returns the paths of these calls by name, on a database that is removed afterwards."""
    folder = tempfile.mkdtemp(prefix="replsite-path-")
    os.environ["REPLSITE_DATA_DIR"] = folder
    os.environ["REPLSITE_LOG_LEVEL"] = "ERROR"
    os.environ.pop("DATABASE_URL", None)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    try:
        import django  # noqa: PLC0415 - after the environment is set
        from django.core.management import call_command  # noqa: PLC0415

        django.setup()
        call_command("migrate", verbosity=0)

        from streams.writing.name import use_instance  # noqa: PLC0415

        use_instance("measured")
        return {name: CALLS[name]() for name in names}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Prints the paths of the calls that the command line names, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("calls", nargs="*", metavar="call", help=f"one of: {', '.join(CALLS)} (all)")
    parser.add_argument("--json", action="store_true", help="an object of figures for each call, instead of text")
    given = parser.parse_args()
    if unknown := set(given.calls) - set(CALLS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CALLS)}")
    sys.path.insert(0, str(PROJECT))
    paths = measured(given.calls or list(CALLS))
    if given.json:
        print(json.dumps({name: path.figures() for name, path in paths.items()}, indent=2))
    else:
        print("\n\n".join(printed(name, path) for name, path in paths.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
