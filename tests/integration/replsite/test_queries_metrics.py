"""The metrics of queries have the names and labels of django-prometheus."""

from __future__ import annotations

import pytest
from django.db import ProgrammingError, connection, transaction
from prometheus_client import REGISTRY

pytestmark = pytest.mark.django_db


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"alias": "default", "vendor": "postgresql", **labels}) or 0.0


def test_statements_are_counted_and_timed():
    counted, timed, many = map(
        value, ("django_db_execute_total", "django_db_query_duration_seconds_count", "django_db_execute_many_total")
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.executemany("SELECT %s", [(1,), (2,)])
    assert value("django_db_execute_total") - counted >= 3
    assert value("django_db_execute_many_total") - many == 2
    assert value("django_db_query_duration_seconds_count") - timed >= 2


def test_errors_are_counted_by_type():
    before = value("django_db_errors_total", type="UndefinedTable")
    with pytest.raises(ProgrammingError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM there_is_no_such_table")
    assert value("django_db_errors_total", type="UndefinedTable") - before == 1
