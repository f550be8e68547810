"""System checks of the pipeline. They report unusable settings of Spark and of the history of jobs.

pipeline.E001   REPLSITE_SPARK_MASTER is no Spark master
pipeline.E002   REPLSITE_SPARK_CONF is not an object with names of Spark's settings and their values as text
pipeline.E003   a setting is not within its bounds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register

from pipeline.conf import pipeline_settings
from pipeline.spark.masters import check_master
from streams.declared_settings import out_of_bounds
from streams.jobs.errors import UnusableArguments
from streams.runtime.command_line import SITE_CHECKS

__all__ = ["check_spark_settings"]


@register(SITE_CHECKS)
def check_spark_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Returns an error for each setting with which the first job would fail."""
    conf = pipeline_settings()
    found: list[CheckMessage] = []
    try:
        check_master(conf.spark_master)
    except UnusableArguments as error:
        found.append(Error(str(error), hint="See REPLSITE_SPARK_MASTER.", id="pipeline.E001"))
    settings: Any = conf.spark_conf
    if not isinstance(settings, Mapping) or not all(
        isinstance(name, str) and name.startswith("spark.") and isinstance(value, str)
        for name, value in settings.items()
    ):
        text = "REPLSITE_SPARK_CONF must be a JSON object of Spark's settings: names that begin with spark. and words."
        found.append(Error(text, hint='For instance {"spark.executor.memory": "4g"}.', id="pipeline.E002"))
    found += [Error(text, hint=hint, id="pipeline.E003") for text, hint in out_of_bounds(conf)]
    return found
