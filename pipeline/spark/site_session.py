"""Opens Spark sessions for the site's commands and jobs, with the site's settings (driver, with Django).

The executors of a cluster are checked first. Notebooks and other services use ``pipeline.spark.session.spark_session``,
which needs no settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.conf import pipeline_settings
from pipeline.spark.cluster_check import check_executors
from pipeline.spark.masters import check_master, is_local
from pipeline.spark.session import LIGHT_DRIVER, PRIVATE_FILES, spark_session
from streams.conf import stream_settings
from streams.db.driver import dsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["site_master", "site_session"]


def site_master(master: str | None = None) -> str:
    """Returns the given master, or the site's. Raises ``UnusableArguments`` for an invalid one."""
    return check_master(master or pipeline_settings().master)


@contextmanager
def site_session(name: str, master: str | None = None, *, light: bool = False) -> Iterator[SparkSession]:
    """Yields a session for the block. On a cluster, its executors are checked first.

    ``light`` is for a JVM that only hands out tasks whose work is done in Python (``pipeline.spark.session.LIGHT_DRIVER``).

    Raises ``UnusableArguments``, ``JavaMissing``, ``MasterAway`` and ``ClusterUnfit``.
    """
    settings, chosen = pipeline_settings(), site_master(master)
    conf = {**(LIGHT_DRIVER if light else {}), **(PRIVATE_FILES if is_local(chosen) else {}), **settings.spark_conf}
    with spark_session(name, folder=settings.folder, master=chosen, project=settings.project, conf=conf) as spark:
        if not is_local(str(spark.sparkContext.master)):
            check_executors(spark, dsn(stream_settings().database), settings.executor_seconds)
        yield spark
