"""Staging tables of a job are used again by the version that filled them, and by no other."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from pipeline.importing.plan import create_staging, drop_staging
from pipeline.importing.staging_tables import STEPS, table_name

JOB = 77


@pytest.fixture
def cursor(transactional_db):
    with connection.cursor() as found:
        yield found
        drop_staging(found, [JOB])


def make(cursor):
    with transaction.atomic():
        create_staging(cursor, JOB)


def steps(cursor):
    cursor.execute(f"SELECT step FROM {table_name(JOB, STEPS.name)} ORDER BY 1")
    return [step for (step,) in cursor.fetchall()]


def stage_something(cursor):
    cursor.execute(f"INSERT INTO {table_name(JOB, STEPS.name)} (step) VALUES ('part 0')")


def test_what_is_staged_stays_for_a_job_that_goes_on(cursor):
    make(cursor)
    stage_something(cursor)
    make(cursor)
    assert "part 0" in steps(cursor)


def test_what_another_version_staged_is_not_read(cursor):
    make(cursor)
    stage_something(cursor)
    cursor.execute(f"UPDATE {table_name(JOB, STEPS.name)} SET step = 'created' WHERE starts_with(step, 'created')")
    make(cursor)
    assert "part 0" not in steps(cursor)
