"""Opens Spark sessions for the site's commands and jobs, with the site's settings. Runs in Spark's driver, and needs Django.

On a cluster, the executors are checked before the session is used. Notebooks and other services use
``pipeline.spark.session.spark_session``, which needs no settings of Django.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pipeline.conf import pipeline_settings
from pipeline.errors import JavaMissing
from pipeline.spark.cluster_check import check_executors
from pipeline.spark.masters import check_master, is_local
from pipeline.spark.session import LIGHT_DRIVER, PRIVATE_FILES, spark_page, spark_session
from streams.conf import stream_settings
from streams.db.driver import dsn
from streams.jobs.job_run import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session_if_worth_it", "site_master", "site_session"]


def site_master(master: str | None = None) -> str:
    """Returns ``master``, or the master in the site's settings if ``master`` is empty.

    Raises ``UnusableArguments`` if the master that would be returned is invalid.
    """
    return check_master(master or pipeline_settings().spark_master)


@contextmanager
def site_session(name: str, master: str | None = None, *, light: bool = False) -> Iterator[SparkSession]:
    """Yields a Spark session for the block. On a cluster, checks the executors first.

    ``light`` is true if all work of the tasks is done in Python, so that the JVM needs little memory
    (``pipeline.spark.session.LIGHT_DRIVER``).

    Raises ``UnusableArguments``, ``JavaMissing``, ``MasterAway`` and ``ClusterUnfit``.
    """
    settings, chosen = pipeline_settings(), site_master(master)
    page = spark_page(settings.spark_page_port) if settings.spark_page_port is not None else {}
    conf = {
        **(LIGHT_DRIVER if light else {}),
        **(PRIVATE_FILES if is_local(chosen) else {}),
        **page,
        **settings.spark_conf,
    }
    with spark_session(name, folder=settings.folder, master=chosen, project=settings.project, conf=conf) as spark:
        if not is_local(str(spark.sparkContext.master)):
            check_executors(spark, dsn(stream_settings().database), settings.spark_executor_seconds)
        yield spark


@contextmanager
def session_if_worth_it(run: JobRun, name: str, master: str | None, *, worth_it: bool) -> Iterator[SparkSession | None]:
    """Yields a light Spark session, or None if this process is to do the work.

    If ``master`` is None, Spark is used if it is worth it and Java is installed. If ``master`` is given, Spark is always
    used, and ``JavaMissing`` is raised if Java is not installed.
    """
    if master is None and not worth_it:
        yield None
        return
    with ExitStack() as stack:
        try:
            spark = stack.enter_context(site_session(name, master, light=True))
        except JavaMissing as missing:
            if master is not None:
                raise
            run.say(f"{missing} Going on in this process.")
            spark = None
        yield spark
