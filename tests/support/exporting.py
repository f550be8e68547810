"""An export to any folder, as the command makes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from pipeline.operations.export import Export
from streams.jobs.folders import any_folder
from streams.jobs.run import run_job


def run_export(folder: Path, arguments: Mapping[str, Any], stream: TextIO) -> Mapping[str, Any]:
    """Returns the job's summary."""
    with any_folder():
        work = Export().work_for({"master": None})
        return run_job(Export.name, {**arguments, "to": str(folder)}, stream=stream, work=work)
