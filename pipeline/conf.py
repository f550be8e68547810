"""The settings of the pipeline as one typed object, read from Django's settings with defaults.

Only driver processes of Spark read these settings. The driver sends executors the values that they need.
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
    """The settings of the pipeline: its folders, the default Spark master with its configuration, and limits."""

    folder: Path
    """The folder of checkpoints, shipped code and Spark's scratch files, below ``REPLSITE_DATA_DIR``."""
    project: Path
    """The folder that may contain ``.java``, the Java that the set-up script fetched."""
    import_folder: Path
    """The only folder whose files queued imports read. A user who may queue a job may not read every file of the machine."""
    master: str = "local[2]"
    """The Spark master of commands without ``--master``."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's own settings, such as ``{"spark.executor.memory": "4g"}``. They are added to the settings that the pipeline
    makes, and override them."""
    executor_seconds: float = 60.0
    """The seconds that a cluster may take to give a job its first executors."""
    spark_page_port: int | None = None
    """The port of Spark's page while a job runs, on loopback. If it is None, there is no page."""
    line_limit_bytes: int = LINE_LIMIT_BYTES
    """The longest line of an import, in bytes. A longer line is quarantined. A value above the default has no effect,
    because the parser has the same limit as the default."""
    archives: Path = Path(".data/archives")
    """The folder of the archives of queued jobs."""
    job_history_days: float = 90.0
    """The days after which the row of a job that is over is removed."""
    job_history_count: int = 10_000
    """The largest number of jobs that are over and whose rows are kept. The rows of the oldest jobs are removed first."""


def pipeline_settings() -> PipelineSettings:
    """Returns the settings of the pipeline, read from Django's settings."""
    project = Path(getattr(settings, "BASE_DIR", Path.cwd()))
    data = Path(getattr(settings, "REPLSITE_DATA_DIR", project / ".data"))
    given = {
        name: getattr(settings, setting)
        for name, setting in {
            "master": "REPLSITE_SPARK_MASTER",
            "spark_conf": "REPLSITE_SPARK_CONF",
            "executor_seconds": "REPLSITE_SPARK_EXECUTOR_SECONDS",
            "spark_page_port": "REPLSITE_SPARK_PAGE_PORT",
            "line_limit_bytes": "REPLSITE_IMPORT_LINE_LIMIT_BYTES",
            "job_history_days": "REPLSITE_JOB_HISTORY_DAYS",
            "job_history_count": "REPLSITE_JOB_HISTORY_COUNT",
        }.items()
        if hasattr(settings, setting)
    }
    archives = Path(getattr(settings, "REPLSITE_ARCHIVE_FOLDER", data / "archives"))
    inbox = Path(getattr(settings, "REPLSITE_IMPORT_FOLDER", data / "import"))
    return PipelineSettings(folder=data / "pipeline", project=project, import_folder=inbox, archives=archives, **given)
