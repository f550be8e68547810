"""The settings of the pipeline as one typed object, read from Django's settings with defaults.

Only drivers use this module; executors are given what they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings

from events.format.parsing import LINE_LIMIT_BYTES

__all__ = ["PipelineSettings", "pipeline_settings"]


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Where the pipeline keeps its files and which Spark it uses unless told otherwise."""

    folder: Path
    """Checkpoints, shipped code and Spark's scratch files; below ``REPLSITE_DATA_DIR``."""
    project: Path
    """Folder that may hold ``.java``, the Java that set-up fetched."""
    import_folder: Path
    """Queued imports read files of this folder only: who may queue a job may not read every file of the machine."""
    master: str = "local[2]"
    """Spark master of commands that were not given ``--master``."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's own settings, added to ours: ``{"spark.executor.memory": "4g"}``."""
    executor_seconds: float = 60.0
    """How long a cluster may take to give a job its first executors."""
    line_limit_bytes: int = LINE_LIMIT_BYTES
    """Longest line of an import; a longer one is quarantined. A higher limit has no effect: the parser has its own."""
    archives: Path = Path(".data/archives")
    """Where archives of queued jobs lie."""
    job_history_days: float = 90.0
    """Rows of jobs that were over for longer are removed."""
    job_history_count: int = 10_000
    """So many jobs that are over are kept at most; the oldest go first."""


def pipeline_settings() -> PipelineSettings:
    """The settings in force."""
    project = Path(getattr(settings, "BASE_DIR", Path.cwd()))
    data = Path(getattr(settings, "REPLSITE_DATA_DIR", project / ".data"))
    given = {
        name: getattr(settings, setting)
        for name, setting in {
            "master": "REPLSITE_SPARK_MASTER",
            "spark_conf": "REPLSITE_SPARK_CONF",
            "executor_seconds": "REPLSITE_SPARK_EXECUTOR_SECONDS",
            "line_limit_bytes": "REPLSITE_IMPORT_LINE_LIMIT_BYTES",
            "job_history_days": "REPLSITE_JOB_HISTORY_DAYS",
            "job_history_count": "REPLSITE_JOB_HISTORY_COUNT",
        }.items()
        if hasattr(settings, setting)
    }
    archives = Path(getattr(settings, "REPLSITE_ARCHIVE_FOLDER", data / "archives"))
    inbox = Path(getattr(settings, "REPLSITE_IMPORT_FOLDER", data / "import"))
    return PipelineSettings(folder=data / "pipeline", project=project, import_folder=inbox, archives=archives, **given)
