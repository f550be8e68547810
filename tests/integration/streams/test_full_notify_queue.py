"""A session that listens and keeps a transaction open fills the server's queue of notifications; then it goes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.own_server import run_on_own_server

_SCRIPT = """
import json
import django
django.setup()
from contextlib import nullcontext
from django.db.backends.postgresql.base import Database
from django.core.management import call_command
from django.db import DatabaseError, connection
from replsite import health
from streams.db import driver
from streams.errors import StreamError
from tests.support.forging import connect_as, reading_role
from tests.support.own_server_settings import set_and_restart
from tests.support.waiting import wait_until
from tests.support.writing import append, ids, linear, session, stored

def part():
    return next(one for one in health.summary().parts if one.name == "notifications")

call_command("migrate", verbosity=0)
assert set_and_restart("max_notify_queue_pages", 64) == "64"

known = append(3)
wait_until(lambda: linear() == known[-1], 20)
with reading_role() as role:
    holder, speaker = connect_as(role), connect_as(role)
    with holder.cursor() as listens:
        for statement in ("LISTEN anything", "BEGIN", "SELECT 1"):
            listens.execute(statement)
    refused = ""
    with speaker.cursor() as says:
        for _ in range(10_000):
            try:
                says.execute("SELECT pg_notify('anything', repeat('x', 7900) || n) FROM generate_series(1, 20) AS n")
            except Database.Error as error:
                refused = str(error)
                break
    meanwhile = append(2)
    in_time = part()
    acknowledged_later = append(2)
    wait_until(lambda: linear() == acknowledged_later[-1], 20, "the position while the queue is full")
    holder.close(), speaker.close()
known += meanwhile + acknowledged_later
wait_until(lambda: linear() == known[-1], 20, "the position after the queue was full")
result = {"refused": refused, "well": in_time.well, "sentence": in_time.sentence, "known": known,
          "ids": ids(), "well_after": part().well}
connection.close()
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Any:
    return run_on_own_server(_SCRIPT, tmp_path_factory.mktemp("server"))


def test_positions_go_on_while_the_queue_is_full_and_after(found):
    """They are stored without notifications. PostgreSQL gives room back when somebody says something; nobody could."""
    assert "too many notifications" in found["refused"]
    assert found["ids"] == found["known"]


def test_health_says_that_the_queue_is_full_and_what_to_do(found):
    assert not found["well"]
    assert "queue of notifications is 100 % full" in found["sentence"]
    assert "transaction" in found["sentence"]
    assert found["well_after"]
