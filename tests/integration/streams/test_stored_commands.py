"""No password of a command line is kept: not by processes that run now, nor what earlier versions kept."""

from __future__ import annotations

import importlib

import pytest
from django.db import connection

from streams.models import Instance
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)
PASSWORD = "Wonder5-land"


def test_a_process_tells_its_command_line_without_passwords(monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["manage.py", "import_events", f"postgresql://u:a'{PASSWORD}\" b@h/db?password=a'{PASSWORD}"]
    )
    append()
    told = " ".join(Instance.objects.values_list("command", flat=True))
    assert "import_events" in told
    assert PASSWORD not in told


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (
            f"manage.py import_events postgresql://u:{PASSWORD}@h/db --resume",
            "manage.py import_events postgresql://u:***@h/db --resume",
        ),
        (f"x redis://:{PASSWORD}@h host=h password={PASSWORD} y", "x redis://:***@h host=h password=*** y"),
        ("manage.py serve --http 127.0.0.1:8000", "manage.py serve --http 127.0.0.1:8000"),
        ("x " * 90 + f" postgresql://user:{PASSWORD}" + "z" * 20, "x " * 90 + " postgresql://user:***"),
        ("manage.py follow tcp://127.0.0.1:9092", "manage.py follow tcp://127.0.0.1:9092"),
        (f"x postgresql://o'hara:a'{PASSWORD}\"@h/db y", "x postgresql://o'hara:***@h/db y"),
        (f"x postgresql://u:a'{PASSWORD}@h?password=***'{PASSWORD}&a=b y", "x postgresql://u:***@h?password=***&a=b y"),
        (f"x host=h password='a {PASSWORD}' user=u", "x host=h password=*** user=u"),
        ("x " * 90 + f" postgresql://user:a'{PASSWORD}" + "z" * 20, "x " * 90 + " postgresql://user:***"),
    ],
)
def test_what_earlier_versions_kept_is_cleaned(stored, wanted):
    Instance.objects.create(name="one", lease=1, state="active", host="h", process_id=1, version="1", command=stored)
    with connection.schema_editor() as editor:
        for name in ("0016_commands_without_passwords", "0023_commands_without_quotes"):
            for statement in importlib.import_module(f"migrations.streams.{name}").Migration.operations[0].sql:
                editor.execute(statement)
    assert Instance.objects.get().command == wanted
