"""The settings of the pipeline: each field is one setting, with its default, its bounds and its meaning.

Only driver processes of Spark read these settings. The driver sends executors the values that they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings

from events.format.parsing import LINE_LIMIT_BYTES
from streams.declared_settings import setting


def _project() -> Path:
    return Path(getattr(settings, "BASE_DIR", Path.cwd()))


def _data() -> Path:
    return Path(getattr(settings, "REPLSITE_DATA_DIR", _project() / ".data"))


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of the pipeline: its folders, the default Spark master with its configuration, and limits."""

    spark_master: str = "local[2]"
    """Spark without ``--master``: ``local[CORES]``, ``local[CORES,TRIES]``, ``spark://HOST:PORT``, ``yarn``, ``k8s://URL``. A
    killed task is tried three times ([cluster](../how-to/run-on-a-cluster.md))."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's own settings, such as ``{"spark.executor.memory": "4g", "spark.cores.max": "16"}``. They are added to the
    settings that the pipeline makes, and override them."""
    spark_executor_seconds: float = setting(60.0, above=0, most=3_600)
    """How long a cluster may take to give a job its first executors. Then the job fails and says so."""
    spark_page_port: int | None = setting(
        None, least=1_024, most=65_519, read=int, wanted="a whole number", unit="port"
    )
    """Port of Spark's page on loopback while a job runs ([run jobs](../how-to/run-jobs.md#spark)); unset: no page. 4040 is
    Spark's own. If it is taken, the next free one of 16 is used."""
    import_line_limit_bytes: int = setting(LINE_LIMIT_BYTES, above=0, variable=None)
    """Longest line of an import. A longer one is quarantined. It can be lowered only, because the parser has this limit."""
    import_folder: Path = setting(default_text="`import/` in the data directory", factory=lambda: _data() / "import")
    """The only folder whose files queued imports read. The command ``import_events`` reads what its user may."""
    archive_folder: Path = setting(
        default_text="`archives/` in the data directory", factory=lambda: _data() / "archives"
    )
    """The only folder in which queued jobs write and read archives. Commands use any
    folder that their user may ([archive and restore](../how-to/archive-and-restore.md))."""
    job_history_days: float = setting(90.0, least=0, most=36_500)
    """``manage.py runjobs`` removes jobs that were over for longer, with what they refused and loaded of each room. 0: by its
    next look ([jobs](../how-to/run-jobs.md))."""
    job_history_count: int = setting(10_000, least=0, most=1_000_000, unit="jobs")
    """Most jobs that are over and are kept. The oldest are removed first."""

    @property
    def folder(self) -> Path:
        """The folder of checkpoints, shipped code and Spark's scratch files, below ``REPLSITE_DATA_DIR``."""
        return _data() / "pipeline"

    @property
    def project(self) -> Path:
        """The folder that may contain ``.java``, the Java that the set-up script fetched."""
        return _project()
