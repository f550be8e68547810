"""What commands that run a job share, and the options of those that write archives."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from events.errors import EventsError
from pipeline.archive.folders import any_folder
from pipeline.errors import PipelineError, UnusableArguments
from pipeline.jobs.run import run_job
from pipeline.spark.masters import given_master
from streams.db import driver
from streams.errors import StreamError

__all__ = ["ARCHIVE_OPTIONS", "add_archive_options", "add_spark_options", "run_as_job"]

ARCHIVE_OPTIONS = ("archive", "spark", "master")


def add_archive_options(parser: argparse.ArgumentParser) -> None:
    """``--archive``, and who writes the files."""
    parser.add_argument(
        "--archive", metavar="FOLDER", help="write what goes to Parquet files there first, checked; restore takes them"
    )
    add_spark_options(parser)


def add_spark_options(parser: argparse.ArgumentParser) -> None:
    """``--spark``, ``--no-spark`` and ``--master``."""
    parser.add_argument(
        "--spark",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="Spark writes the files; left out: when there are many",
    )
    parser.add_argument(
        "--master", type=given_master, metavar="URL", help="Spark master, e.g. local[4] or spark://host:7077"
    )


def run_as_job(command: BaseCommand, kind: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a job now, with folders as the command's user may use them; returns its summary.

    Raises ``CommandError``: 2 for unusable arguments, 1 for all that went wrong.
    """
    stream: Any = command.stderr  # a file in all that is used
    try:
        with any_folder():
            return run_job(kind, arguments, stream=stream)
    except UnusableArguments as error:
        raise CommandError(str(error), returncode=2) from error
    except (EventsError, PipelineError, StreamError, OSError) as error:
        raise CommandError(str(error), returncode=1) from error
    except (DatabaseError, driver.DatabaseError) as error:
        raise CommandError(driver.explain(error), returncode=1) from error
