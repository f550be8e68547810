"""Locks in prepared transactions of a role that may only read: they have no session, and outlive each restart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.own_server import run_on_own_server

_SCRIPT = """
import json
import django
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from streams.db import driver
from streams.errors import WriterNameTaken
from streams.reading.trust import stranger_with_lock
from streams.writing import append_lock
from streams.writing.dead_writers import resolve_writer
from streams.writing.process import current_writer, retire_all
from tests.support.forging import connect_as, reading_role
from tests.support.own_server_settings import restart, set_and_restart
from tests.support.writing import append, session

def prepare(role, key, shared=""):
    held = connect_as(role)
    with held.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT pg_advisory_xact_lock{shared}(%s)", [key])
        cursor.execute("PREPARE TRANSACTION 'held'")
    held.close()

def forget():
    with session() as cursor:
        cursor.execute("ROLLBACK PREPARED 'held'")

call_command("migrate", verbosity=0)
setting = set_and_restart("max_prepared_transactions", 4)
append()
with session() as cursor:
    append_key, writer_key = driver.append_key(cursor, "master"), driver.writer_key(cursor, "master")
result = {"setting": setting}
with reading_role() as role:
    prepare(role, append_key, "_shared")
    with session() as cursor:
        result["counts"] = append_lock.is_held(cursor, append_key)
    retire_all()
    restart()
    with session() as cursor:
        result["counts_after_restart"] = append_lock.is_held(cursor, append_key)
    append()  # by a new lease
    current_writer().close()
    with session() as cursor:
        result["resolved"] = bool(resolve_writer(cursor, "master", "test"))
    forget()
    prepare(role, writer_key)
    with session() as cursor:
        result["stranger"] = stranger_with_lock(cursor, writer_key)
    try:
        append()
    except WriterNameTaken as error:
        result["error"] = str(error)
    forget()
with transaction.atomic(), connection.cursor() as cursor:  # of the site's own role
    cursor.execute("SELECT pg_advisory_xact_lock_shared(%s), pg_current_xact_id()", [append_key])
    cursor.execute("PREPARE TRANSACTION 'held'")
    cursor.execute("BEGIN")
with session() as cursor:
    result["own_counts"] = append_lock.is_held(cursor, append_key)
forget()
retire_all()
connection.close()
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Any:
    return run_on_own_server(_SCRIPT, tmp_path_factory.mktemp("server"))


def test_a_reader_that_prepares_a_transaction_keeps_no_writer_out(found):
    """Its lock counted as that of an open append, for ever: the writer could neither start again nor be retired."""
    assert found["setting"] == "4"
    assert (found["counts"], found["counts_after_restart"], found["resolved"]) == (False, False, True)


def test_a_prepared_transaction_of_a_role_that_appends_counts(found):
    assert found["own_counts"]


def test_the_errors_say_that_a_prepared_transaction_holds_the_lock(found):
    assert "ROLLBACK PREPARED" in found["error"]
    assert found["stranger"] == "a prepared transaction"
