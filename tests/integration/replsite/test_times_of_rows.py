"""A row whose time Python has not, which only SQL stores, keeps nobody from seeing all other rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models
from django.test import Client

from replsite.live_rows.reading import read_snapshot
from streams.models import ReaderResync, StreamPosition
from streams.testing import forget_writers
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)
TIMES = ["0044-03-15 BC", "294276-12-31", "infinity", "-infinity"]
PAGES = ["/admin/live/", "/admin/happened/", "/admin/history/", "/health", "/metrics"]
#: Texts of values of a type, for rows of which only the times matter.
VALUES = {
    "uuid": "00000000-0000-0000-0000-000000000000",
    "json": "{}",
    "[]": "{}",
    "int": "5",
    "double": "5",
    "numeric": "5",
    "bool": "true",
    "bytea": r"\x7b7d",
}


def _run(sql: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def _tables_with_times() -> Iterator[type[models.Model]]:
    for model in apps.get_models():
        is_ours = model._meta.app_label in {"streams", "streams_catalog", "events", "pipeline"}
        if is_ours and any(isinstance(field, models.DateField) for field in model._meta.concrete_fields):
            yield model


def _add_row(model: type[models.Model], time: str) -> None:
    columns, values = [], []
    for field in model._meta.concrete_fields:
        kind = str(field.db_type(connection))
        if not isinstance(field, models.AutoField):
            columns.append(f'"{field.column}"')
            found = next((text for word, text in VALUES.items() if word in kind), "x")
            found = next((value for value, _ in field.choices or ()), found)
            values.append(f"'{time if isinstance(field, models.DateField) else found}'")
    table = model._meta.db_table
    always = _run(f"SELECT tgname FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgenabled = 'A'")
    _run(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
    try:
        _run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(values)})")
    finally:
        _run(f"ALTER TABLE {table} ENABLE TRIGGER ALL")
        for (trigger,) in always:
            _run(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}")


@pytest.mark.parametrize("time", TIMES)
def test_all_tables_of_the_site_may_have_such_a_row(time: str, admin_client: Client):
    append()
    forget_writers()
    for model in _tables_with_times():
        _run(f"SET LOCAL streams.maintenance = on; DELETE FROM {model._meta.db_table}")
        _add_row(model, time)
    snapshot = read_snapshot()
    assert [reader.name for reader in snapshot.readers] == ["x"]
    for page in PAGES:
        assert admin_client.get(page).status_code in (200, 503), page


@pytest.mark.parametrize("time", TIMES)
def test_lists_rows_and_csv_of_the_admin_show_the_row(time: str, admin_client: Client):
    for model in (StreamPosition, ReaderResync):
        _run(f"SET LOCAL streams.maintenance = on; DELETE FROM {model._meta.db_table}")
        _add_row(model, time)
        base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        (key,) = model.objects.values_list("pk", flat=True)
        for address in (base, f"{base}?format=csv", f"{base}{key}/change/"):
            answer = admin_client.get(address)
            assert answer.status_code == 200, (address, answer.headers.get("Location"))
            assert ">x<" in answer.content.decode() or "x," in answer.content.decode()
