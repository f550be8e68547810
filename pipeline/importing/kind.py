"""Imports as queued jobs: what may be named, and the run by ``manage.py runjobs``.

Whoever may queue a job need not be allowed to read every file of the machine, nor to reach every database from it. So a
queued import reads files of one folder (setting ``REPLSITE_IMPORT_FOLDER``), named as they are seen from there, and PostgreSQL
databases by the name of a libpq service, which only the operator can define. The command ``import_events`` runs as its user,
without such limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.conf import pipeline_settings
from pipeline.errors import UnusableArguments
from pipeline.importing.staging_tables import PREFIX
from pipeline.jobs.fields import Entry, JobField
from pipeline.jobs.kinds import only
from pipeline.jobs.run import JobRun, register
from streams.runtime.masking import masked

__all__ = ["ImportKind", "register_imports"]

_MOST_SOURCES = 10_000
_SERVICE = re.compile(r"postgres(?:ql)?:///?\?service=[A-Za-z0-9_.-]{1,100}")


class ImportKind:
    """Imports room histories; goes on where it was when it is begun again."""

    help = (
        "Import room histories: sources are files below the import folder, folders of Parquet files there, or a Synapse database "
        "as postgresql:///?service=NAME."
    )
    staging_prefix = PREFIX
    fields = (
        JobField("sources", Entry.LINES, "files and folders below the import folder, one a line", required=True),
        JobField("as_history", Entry.FLAG, "on the backward stream, below everything that is there"),
        JobField("keys", Entry.TEXT, "file with the keys of servers, which verify signatures; none: they are trusted"),
    )

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``sources``: a list of names; ``as_history``: on the backward stream; ``keys``: the name of a file."""
        only(arguments, "sources", "as_history", "keys")
        names = arguments.get("sources")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise UnusableArguments('sources must be a list of names, such as ["rooms.jsonl.gz"].')
        if len(names) > _MOST_SOURCES:
            raise UnusableArguments(
                f"{len(names):,} sources; at most {_MOST_SOURCES:,}. Name a folder, or queue several jobs."
            )
        as_history = arguments.get("as_history", False)
        if not isinstance(as_history, bool):
            raise UnusableArguments(f"as_history must be true or false, not {as_history!r:.100}.")
        checked = {"sources": [_checked(name) for name in names], "as_history": as_history}
        keys = arguments.get("keys")
        if keys is None:
            return checked
        if not isinstance(keys, str) or "://" in keys:
            raise UnusableArguments(f"keys must be the name of a file below the import folder, not {keys!r:.100}.")
        return {**checked, "keys": _checked(keys)}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """The same import as the command's."""
        from pipeline.importing.job import ImportOptions, import_in  # noqa: PLC0415 - needs pyspark
        from pipeline.importing.keys import read_keys  # noqa: PLC0415
        from pipeline.importing.sources.inputs import open_inputs  # noqa: PLC0415

        checked = self.check(run.arguments)
        names = [_opened(name) for name in checked["sources"]]
        keys = _opened(checked["keys"]) if "keys" in checked else None
        options = ImportOptions(names, as_history=run.arguments["as_history"], keys=keys)
        return import_in(run, options, open_inputs(names), read_keys(keys)).record()


def _checked(name: str) -> str:
    if _SERVICE.fullmatch(name):
        return name
    if "://" in name:
        raise UnusableArguments(
            f"{masked(name)!r:.200} cannot be queued: name a database as postgresql:///?service=NAME, with the service in "
            "pg_service.conf (and the password in .pgpass) of the user who runs runjobs."
        )
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        raise UnusableArguments(
            f"{name!r:.200} cannot be queued: name a file below the folder {pipeline_settings().import_folder}, "
            "as seen from there (setting REPLSITE_IMPORT_FOLDER)."
        )
    return name


def _opened(name: str) -> str:
    """What the name stands for; a link that leads out of the folder is refused."""
    if "://" in name:
        return name
    folder = pipeline_settings().import_folder
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UnusableArguments(f"{name!r:.200} leads out of the folder {folder}. Put the file itself there.")
    return str(Path(path))


def register_imports() -> None:
    """Make the kind known, under the command's name."""
    register("import_events", ImportKind())
