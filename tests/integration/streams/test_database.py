"""Direct connections: their own, past a pooler, with the caller's options."""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import closing

import pytest
from django.db import connection
from django.db.backends.postgresql.base import Database
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from streams.db import driver

pytestmark = pytest.mark.django_db


def test_it_is_a_session_of_its_own_in_autocommit_mode():
    with closing(driver.direct_connection(application_name="a test")) as direct, direct.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name'), pg_backend_pid() <> %s", [own_process()])
        assert cursor.fetchone() == ("a test", True)
        assert direct.autocommit


def own_process() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_a_transaction_is_committed_at_its_end():
    with closing(driver.direct_connection(application_name="test")) as direct, direct.cursor() as cursor:
        with driver.in_transaction(cursor):
            cursor.execute("CREATE TEMP TABLE of_the_test ()")
        cursor.execute("SELECT to_regclass('of_the_test') IS NOT NULL")
        assert cursor.fetchone() == (True,)
        assert direct.info.transaction_status == driver.IDLE


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_any_error_rolls_a_transaction_back(error):
    with closing(driver.direct_connection(application_name="test")) as direct, direct.cursor() as cursor:
        with pytest.raises(error), driver.in_transaction(cursor):
            cursor.execute("CREATE TEMP TABLE of_the_test ()")
            raise error
        cursor.execute("SELECT to_regclass('of_the_test')")
        assert cursor.fetchone() == (None,)
        assert direct.info.transaction_status == driver.IDLE


def test_an_error_of_a_lost_connection_is_the_one_that_is_told():
    direct = driver.direct_connection(application_name="test")
    with direct.cursor() as cursor, pytest.raises(ZeroDivisionError), driver.in_transaction(cursor):
        direct.close()
        raise ZeroDivisionError


def test_long_names_are_cut():
    with closing(driver.direct_connection(application_name="x" * 100)) as direct, direct.cursor() as cursor:
        cursor.execute("SHOW application_name")
        assert cursor.fetchone() == ("x" * 63,)


def test_options_of_the_site_are_kept(monkeypatch):
    given = connection.get_connection_params()
    monkeypatch.setattr(
        connection, "get_connection_params", lambda: given | {"connect_timeout": 3, "isolation_level": 2}
    )
    with closing(driver.direct_connection(application_name="test")) as direct:
        found = direct.info.get_parameters() if is_psycopg3 else direct.info.dsn_parameters
        assert found["connect_timeout"] == "3"


def test_a_pooler_is_passed_by(monkeypatch):
    given = connection.get_connection_params()
    monkeypatch.setattr(connection, "get_connection_params", lambda: given | {"port": 1})
    with pytest.raises(Database.OperationalError):
        driver.direct_connection(application_name="test")
    monkeypatch.setitem(connection.settings_dict, "DIRECT", {"PORT": given["port"]})
    driver.direct_connection(application_name="test").close()


def test_dsn_is_enough_to_connect():
    with closing(Database.connect(driver.dsn())) as elsewhere, elsewhere.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        assert cursor.fetchone() == (connection.settings_dict["NAME"],)


def test_lock_keys_differ_by_kind_and_name_and_fit():
    kinds = (driver.reader_key, driver.recorder_key, driver.trim_key)
    with connection.cursor() as cursor:
        keys = {make(cursor, name) for make in kinds for name in ("a", "b")}
    assert len(keys) == 6
    assert all(-(2**63) <= key < 2**63 for key in keys)


def backend(kept: driver.KeptConnection) -> int:
    with kept.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_a_kept_connection_is_kept():
    with closing(driver.KeptConnection(None, "kept")) as kept:
        assert backend(kept) == backend(kept)


def test_a_kept_connection_that_failed_is_another_the_next_time():
    with closing(driver.KeptConnection(None, "kept")) as kept:
        first = backend(kept)
        with pytest.raises(driver.DatabaseError), kept.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert backend(kept) != first


def test_a_kept_connection_may_be_closed_twice_and_used_again():
    kept = driver.KeptConnection(None, "kept")
    kept.close()
    assert backend(kept)
    kept.close()
    kept.close()


def kept_session() -> driver.KeptConnection:
    return driver.KeptConnection(None, "test", reads_in_order=True)


def test_a_statement_with_named_parameters_is_planned_once():
    kept = kept_session()
    for number in (5, 6):
        with kept.cursor() as cursor:
            cursor.execute("SELECT %(a)s::bigint + %(b)s::bigint + %(a)s::bigint, 7 %% 4, '%%'", {"a": number, "b": 1})
            assert cursor.fetchone() == (2 * number + 1, 3, "%")
    with kept.cursor() as cursor:
        cursor.execute("SELECT count(*), sum(generic_plans) FROM pg_prepared_statements")
        assert cursor.fetchone() == (1, 2)
    kept.close()


def test_prepared_statements_take_lists_and_nothing():
    kept = kept_session()
    statement = "SELECT %(names)s::text[] IS NULL, coalesce(cardinality(%(names)s::text[]), 0)"
    for names, expected in ((None, (True, 0)), ([], (False, 0)), (["a", "b'%"], (False, 2))):
        with kept.cursor() as cursor:
            cursor.execute(statement, {"names": names})
            assert cursor.fetchone() == expected
    kept.close()


def test_a_new_connection_prepares_anew():
    kept = kept_session()
    for _ in range(2):
        with kept.cursor() as cursor:
            cursor.execute("SELECT %(a)s::text", {"a": "x"})
            assert cursor.fetchone() == ("x",)
        kept.close()


def test_reading_in_order_does_not_compile_plans():
    kept = kept_session()
    with kept.cursor() as cursor:
        cursor.execute("SHOW jit")
        assert cursor.fetchone() == ("off",)
    kept.close()


@pytest.mark.parametrize("lowest", [0, 1_500])
def test_what_can_be_read_is_found_whatever_its_descriptor(lowest):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    read, write = os.pipe()
    high = fcntl.fcntl(read, fcntl.F_DUPFD, lowest)
    try:
        assert driver.ready_to_read([high], 0.001) == []
        os.write(write, b"x")
        assert driver.ready_to_read([high], None) == [high]
    finally:
        for one in (read, write, high):
            os.close(one)
