"""System checks of the pipeline. They report unusable settings of Spark and of the history of jobs.

pipeline.E001   REPLSITE_SPARK_MASTER is no Spark master
pipeline.E002   REPLSITE_SPARK_CONF is not an object with names of Spark's settings and their values as text
pipeline.E003   REPLSITE_SPARK_EXECUTOR_SECONDS is not above 0 or is too large
pipeline.E004   REPLSITE_JOB_HISTORY_DAYS or REPLSITE_JOB_HISTORY_COUNT is below 0 or too large
pipeline.E005   REPLSITE_SPARK_PAGE_PORT is no port
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register

from pipeline.conf import pipeline_settings
from pipeline.errors import UnusableArguments
from pipeline.spark.masters import check_master
from streams.runtime.command_line import SITE_CHECKS

__all__ = ["check_spark_settings"]

_LONGEST_SECONDS = 3_600
_LONGEST_DAYS = 36_500
_MOST_JOBS = 1_000_000
#: Spark takes no port below, and tries the next 16.
_LOWEST_PORT, _HIGHEST_PORT = 1_024, 65_519


@register(SITE_CHECKS)
def check_spark_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Returns an error for each setting with which the first job would fail."""
    conf = pipeline_settings()
    found: list[CheckMessage] = []
    try:
        check_master(conf.master)
    except UnusableArguments as error:
        found.append(Error(str(error), hint="See REPLSITE_SPARK_MASTER.", id="pipeline.E001"))
    if not _is_configuration(conf.spark_conf):
        text = "REPLSITE_SPARK_CONF must be a JSON object of Spark's settings: names that begin with spark. and words."
        found.append(Error(text, hint='For instance {"spark.executor.memory": "4g"}.', id="pipeline.E002"))
    if not 0 < conf.executor_seconds <= _LONGEST_SECONDS:
        text = f"REPLSITE_SPARK_EXECUTOR_SECONDS must be above 0 and at most {_LONGEST_SECONDS:,}, not {conf.executor_seconds}."
        found.append(Error(text, hint="The default is 60.", id="pipeline.E003"))
    if not (0 <= conf.job_history_days <= _LONGEST_DAYS and 0 <= conf.job_history_count <= _MOST_JOBS):
        text = (
            f"REPLSITE_JOB_HISTORY_DAYS must be from 0 to {_LONGEST_DAYS:,} and REPLSITE_JOB_HISTORY_COUNT from 0 to "
            f"{_MOST_JOBS:,}, not {conf.job_history_days} and {conf.job_history_count}."
        )
        found.append(Error(text, hint="The defaults are 90 and 10000.", id="pipeline.E004"))
    if conf.spark_page_port is not None and not _LOWEST_PORT <= conf.spark_page_port <= _HIGHEST_PORT:
        text = f"REPLSITE_SPARK_PAGE_PORT must be a port from {_LOWEST_PORT} to {_HIGHEST_PORT}, not {conf.spark_page_port}."
        found.append(Error(text, hint="Spark's own is 4040. Leave the setting out for no page.", id="pipeline.E005"))
    return found


def _is_configuration(conf: Any) -> bool:
    return isinstance(conf, Mapping) and all(
        isinstance(name, str) and name.startswith("spark.") and isinstance(value, str) for name, value in conf.items()
    )
