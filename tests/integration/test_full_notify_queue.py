"""A session that listens and keeps a transaction open fills the server's queue of notifications; then it goes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.own_server import run_on_own_server

_SCRIPT = """
import json, os, signal
from pathlib import Path
import django
django.setup()
import psycopg2
from django.core.management import call_command
from django.db import DatabaseError, connection
from replsite import health
from streams.db import driver
from streams.errors import StreamError
from streams.writing.process import current_writer, retire_all
from tests.support.forging import connect_as, reading_role
from tests.support.waiting import wait_until
from tests.support.writing import append, ids, linear, session, stored

def setting():
    try:
        with session() as cursor:
            cursor.execute("SHOW max_notify_queue_pages")
            return cursor.fetchone()[0]
    except psycopg2.Error:
        return ""

def part():
    return next(one for one in health.summary().parts if one.name == "notifications")

call_command("migrate", verbosity=0)
with session() as cursor:
    cursor.execute("ALTER SYSTEM SET max_notify_queue_pages = 64")
connection.close()
os.kill(int((Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data/postmaster.pid").read_text().split()[0]), signal.SIGINT)
wait_until(lambda: setting() == "64", 60)

known = append(3)
wait_until(lambda: linear() == known[-1], 20)
lease = current_writer().lease
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
            except psycopg2.Error as error:
                refused = str(error)
                break
    meanwhile = append(2)
    in_time = part()
    acknowledged_later = append(2)
    waits = linear() < acknowledged_later[-1]
    held = current_writer().lease
    holder.close(), speaker.close()
known += meanwhile + acknowledged_later
wait_until(lambda: linear() == known[-1], 20, "the position after the queue was full")
result = {"refused": refused, "well": in_time.well, "sentence": in_time.sentence, "waits": waits, "known": known,
          "ids": ids(), "leases": [lease, held, current_writer().lease], "well_after": part().well}
retire_all()
connection.close()
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Any:
    return run_on_own_server(_SCRIPT, tmp_path_factory.mktemp("server"))


def test_facts_are_announced_again_once_that_session_is_gone(found):
    """PostgreSQL gives room back when somebody says something; nobody could, so the queue was full for good."""
    assert "too many notifications" in found["refused"]
    assert found["waits"]
    assert found["ids"] == found["known"]


def test_the_writer_keeps_its_name_and_takes_facts_meanwhile(found):
    assert len(set(found["leases"])) == 1


def test_health_says_that_the_queue_is_full_and_what_to_do(found):
    assert not found["well"]
    assert "queue of notifications is 100 % full" in found["sentence"]
    assert "transaction" in found["sentence"]
    assert found["well_after"]
