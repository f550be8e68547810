"""Doctor on Spark: tasks read the same snapshot, and find what one process finds."""

from __future__ import annotations

import json

import psycopg2
import pytest
from django.core.management import call_command

from pipeline.doctor import many_rooms
from tests.support.room_data import ROOM_NAMES
from tests.support.synapse_database import postgresql_database

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.django_db(transaction=True)]
SMALL = [name for name in ROOM_NAMES if name != "large_v10"]
DAMAGE = """
DELETE FROM current_state_events WHERE type = 'm.room.join_rules';
DELETE FROM state_groups_state WHERE ctid IN (SELECT ctid FROM state_groups_state ORDER BY state_group OFFSET 700 LIMIT 3)
"""


def examine(capsys, url, **options):
    with pytest.raises(SystemExit, match="1"):
        call_command("doctor", url, "--json", **options)
    return json.loads(capsys.readouterr().out)


def test_tasks_find_what_one_process_finds(database_url, capsys, monkeypatch):
    with postgresql_database(database_url, SMALL, answers=True) as url:
        with psycopg2.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(DAMAGE)
        connection.close()
        here = examine(capsys, url)
        monkeypatch.setattr(many_rooms, "_EVENTS_PER_TASK", 400)
        on_spark = examine(capsys, url, master="local[2]")
    assert {finding["reason"] for finding in here["findings"]} == {"state-differs", "current-state-differs"}
    assert on_spark["findings"] == here["findings"]
    for report in (here, on_spark):
        del report["checked"]["seconds"]
    assert on_spark["checked"] == here["checked"] and here["checked"]["events"] == 1962
