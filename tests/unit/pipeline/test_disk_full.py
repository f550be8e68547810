"""A full disk is told as one, whoever noticed it."""

from __future__ import annotations

import errno

import pytest
from django.db import OperationalError

from pipeline.disk_full import disk_full
from pipeline.errors import DiskFull, PipelineError, SparkFailed


class _OfPostgres(Exception):
    def __init__(self, pgcode):
        super().__init__("could not extend file")
        self.pgcode = pgcode


def wrapped(pgcode):
    error = OperationalError("could not extend file")
    error.__cause__ = _OfPostgres(pgcode)
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SparkFailed('Spark could not finish: psycopg2.errors.DiskFull: could not extend file "base/1"'),
        SparkFailed("Spark could not finish: java.io.IOException: No space left on device"),
        wrapped("53100"),
    ],
)
def test_it_says_what_to_do_and_keeps_the_reason(error):
    with pytest.raises(DiskFull, match=r"A disk is full: .*Free space, then go on with --resume") as told, disk_full():
        raise error
    assert told.value.__cause__ is error and isinstance(told.value, PipelineError)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EACCES, "Permission denied"),
        SparkFailed("Spark could not finish"),
        wrapped("40001"),
        KeyError("x"),
    ],
)
def test_other_errors_come_as_they_are(error):
    with pytest.raises(type(error)) as told, disk_full():
        raise error
    assert told.value is error
