"""One Spark session for the process, and imports into the test database.

The session is shared, because starting one takes seconds: code under test that asks for a session gets this one. Tests that
kill a process start one of their own.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Iterator

import pytest
from django.db import connection

from pipeline.conf import pipeline_settings
from pipeline.errors import JavaMissing
from pipeline.spark.session import LIGHT_DRIVER, PRIVATE_FILES, find_java, spark_session
from tests.support.emptying import empty_tables
from tests.support.warm_start import WARM


def pytest_collection_modifyitems(items):
    for item in items:
        if {"spark", "imported", "run_script"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(django_db_setup) -> Iterator[object]:
    """Ended before the test database is dropped, because its Python workers keep connections."""
    settings = pipeline_settings()
    try:
        find_java(settings.project)
    except JavaMissing as missing:
        pytest.skip(f"no Java here: {missing}")
    conf = {"spark.python.worker.reuse": "true", **LIGHT_DRIVER, **PRIVATE_FILES}
    with spark_session("tests", folder=settings.folder, project=settings.project, conf=conf) as session:
        yield session


@pytest.fixture(scope="module")
def module_database(django_db_setup, django_db_blocker) -> Iterator[None]:
    """The test database for a whole module, whose tests only read and are marked ``django_db``; emptied afterwards."""
    from streams.testing import forget_writers  # needs Django's apps

    with django_db_blocker.unblock():
        yield
        forget_writers()
        empty_tables()


@pytest.fixture
def run_script(database_url):
    """``run_script(code, *arguments)``: run Python with Django set up on the test database, in a process of its own."""

    def run(code: str, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        prelude = "import os, sys, signal, django; django.setup()\n"
        command = ("-c", prelude + textwrap.dedent(code), *arguments)
        environment = {**os.environ, "DATABASE_URL": database_url}
        with WARM.popen(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.fixture
def rows():
    """``rows(sql, *parameters)``: all rows of a query."""

    def fetch(sql: str, *parameters: object) -> list[tuple]:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return cursor.fetchall()

    return fetch
