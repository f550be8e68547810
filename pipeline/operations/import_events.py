"""``import_events``: the arguments of imports, and their work as queued jobs.

A user who may queue a job need not be allowed to read every file of the machine, or to reach every database from it. So
a queued import reads only files of one folder (setting ``REPLSITE_IMPORT_FOLDER``), and their names are relative to
this folder. A queued import names a PostgreSQL database by a libpq service, which only the operator can define. The
command ``import_events`` runs with the rights of its user, without these limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from pipeline.conf import pipeline_settings
from pipeline.importing.staging_tables import PREFIX
from pipeline.spark.arguments import master
from streams.jobs.arguments import Argument, OneOf, Type
from streams.jobs.errors import UnusableArguments
from streams.jobs.folders import is_any_folder
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, operation
from streams.runtime.masking import masked

__all__ = ["ImportEvents"]

_MOST_SOURCES = 10_000
_SIGNATURES = OneOf()
_SERVICE = re.compile(r"postgres(?:ql)?:///?\?service=[A-Za-z0-9_.-]{1,100}")


def _sources(_: str, names: Any) -> list[str]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UnusableArguments('sources must be a list of names, such as ["rooms.jsonl.gz"].')
    if is_any_folder():
        return names
    if len(names) > _MOST_SOURCES:
        raise UnusableArguments(
            f"{len(names):,} sources; at most {_MOST_SOURCES:,}. Name a folder, or queue several jobs."
        )
    return [_checked(name) for name in names]


def _keys(_: str, name: Any) -> str:
    if is_any_folder():
        return str(name)
    if not isinstance(name, str) or "://" in name:
        raise UnusableArguments(f"keys must be the name of a file below the import folder, not {name!r:.100}.")
    return _checked(name)


@operation
class ImportEvents(Operation):
    """Imports room histories. A repeated run continues where the last run ended."""

    name = "import_events"
    help = (
        "Import room histories: sources are files below the import folder, folders of Parquet files there, or a Synapse database "
        "as postgresql:///?service=NAME."
    )
    staging_prefix = PREFIX
    arguments = (
        Argument(
            "sources", Type.LINES, "file, folder of Parquet files, or postgresql:// URL", typed="PATH", required=True,
            check=_sources, in_form="files and folders below the import folder, one a line",
        ),
        Argument(
            "as_history", Type.FLAG, "on the backward stream: new to no user",
            in_form="on the backward stream, below everything that is there",
        ),
        Argument("resume", Type.FLAG, "continue the import of these that ended early", stored=False),
        master("Spark master (default: the setting)", stored=False),
        Argument(
            "trust_signatures", Type.FLAG, "look at no signature: the sources are trusted (the default)",
            stored=False, one_of=_SIGNATURES,
        ),
        Argument(
            "keys", Type.TEXT, 'verify signatures: {"SERVER": {"ed25519:ID": "KEY"}}; unsigned events are put aside',
            typed="--keys FILE", omitted=True, check=_keys, one_of=_SIGNATURES,
            in_form="file with the keys of servers, which verify signatures; none: they are trusted",
        ),
        Argument("json", Type.FLAG, "only the summary line on stdout, no report on stderr", stored=False),
    )  # fmt: skip

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Runs the import. Returns the figures to store in the job's row."""
        from pipeline.frames.sources.inputs import open_inputs  # noqa: PLC0415
        from pipeline.importing.job import ImportOptions, import_in  # noqa: PLC0415 - needs pyspark
        from pipeline.importing.keys import read_keys  # noqa: PLC0415

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
    """Returns the path or URL to open for the input ``name``.

    Raises ``UnusableArguments`` if a symbolic link leads out of the import folder.
    """
    if "://" in name:
        return name
    folder = pipeline_settings().import_folder
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UnusableArguments(f"{name!r:.200} leads out of the folder {folder}. Put the file itself there.")
    return str(path)
