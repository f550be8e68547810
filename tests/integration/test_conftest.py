"""The shared fixtures do what they promise."""

from __future__ import annotations

import pytest
from django.db import connection


@pytest.mark.django_db
def test_the_test_database_is_postgresql():
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        assert cursor.fetchone()[0].startswith("test_")


def test_commands_run_on_the_test_database(run_manage):
    done = run_manage(
        "shell",
        "-v",
        "0",
        "-c",
        "from django.db import connection as c; c.connect(); print(c.get_database_version(), c.settings_dict['NAME'])",
    )
    assert connection.settings_dict["NAME"] in done.stdout, done.stderr
