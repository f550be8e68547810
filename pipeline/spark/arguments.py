"""The argument that names a Spark master, for the operations that may work on Spark."""

from __future__ import annotations

from typing import Any

from pipeline.spark.masters import check_master, master_argument
from streams.jobs.arguments import Argument, Type
from streams.jobs.errors import UnusableArguments

__all__ = ["master"]


def master(help_text: str, **more: Any) -> Argument:
    """Returns the argument ``master``. It is privileged: a master's executors receive the database's credentials."""
    return Argument(
        "master", Type.TEXT, help_text, typed="--master URL", check=_master, parse=master_argument, is_privileged=True,
        **more,
    )  # fmt: skip


def _master(name: str, value: Any) -> str:
    if isinstance(value, str):
        return check_master(value)
    raise UnusableArguments(f"{name} must be the URL of a Spark master.")
