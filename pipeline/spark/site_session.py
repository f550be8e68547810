"""The Spark session of the site's commands and jobs: with the site's settings, and fit for the work (driver, with Django).

Notebooks and other services take ``pipeline.spark.session.spark_session``, which needs no settings.
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
    """The master that was given, else the site's; raises ``UnusableArguments`` for what is none."""
    return check_master(master or pipeline_settings().master)


@contextmanager
def site_session(name: str, master: str | None = None, *, light: bool = False) -> Iterator[SparkSession]:
    """A session for the length of the block; on a cluster its executors were asked whether they can do our work.

    ``light``: the JVM here only hands out tasks, whose work is done in Python (``pipeline.spark.session.LIGHT_DRIVER``).

    Raises ``UnusableArguments``, ``JavaMissing``, ``MasterAway`` and ``ClusterUnfit``.
    """
    settings, chosen = pipeline_settings(), site_master(master)
    conf = {**(LIGHT_DRIVER if light else {}), **(PRIVATE_FILES if is_local(chosen) else {}), **settings.spark_conf}
    with spark_session(name, folder=settings.folder, master=chosen, project=settings.project, conf=conf) as spark:
        if not is_local(str(spark.sparkContext.master)):
            check_executors(spark, dsn(stream_settings().database), settings.executor_seconds)
        yield spark
