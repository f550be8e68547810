"""Both drivers: what is asked of each comes out the same, the other one is not needed, and none or a wrong one is refused."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import uuid
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.test import override_settings

from streams.catalog.models import CacheInvalidation
from streams.checks import check_driver
from streams.db import driver
from streams.db.copy_in import copy_in
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, fact, stream

OTHER = "psycopg2" if is_psycopg3 else "psycopg"
SOME_TIME = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
SOME_ID = uuid.UUID(int=7)


def imports_of(path: Path) -> set[str]:
    """The packages that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_one_module_for_each_driver_imports_it():
    """The pipeline's Spark tasks connect without Django, and always with psycopg2 and ADBC."""
    found = {
        (str(path.relative_to(PROJECT)), name)
        for room in ("streams", "state", "events", "replsite")
        for path in (PROJECT / room).rglob("*.py")
        for name in imports_of(path) & {"psycopg", "psycopg2", "psycopg_pool", "asyncpg"}
    }
    assert found == {("streams/db/driver_psycopg2.py", "psycopg2"), ("streams/db/driver_psycopg3.py", "psycopg")}


def test_both_modules_have_the_same_names():
    named = []
    for version in (2, 3):
        tree = ast.parse((PROJECT / "streams" / "db" / f"driver_psycopg{version}.py").read_text())
        (all_,) = (
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
        )
        named.append(ast.literal_eval(all_))
    assert named[0] == named[1]


VALUES = {
    "bigint": 2**62,
    "smallint": -3,
    "numeric": Decimal("12.3400"),
    "float8": 1.5,
    "boolean": True,
    "text": 'it\'s 100% \\ "é" \u2028',
    "bytea": b"\0\xff'",
    "uuid": SOME_ID,
    "date": date(2026, 3, 1),
    "timestamptz": SOME_TIME,
    "interval": timedelta(days=3, microseconds=5),
    "text[]": ["a", "b,\"'{}", "NULL", ""],
    "bigint[]": [1, 2**40],
    "timestamptz[]": [SOME_TIME],
    "uuid[]": [SOME_ID],
    "numeric[]": [Decimal("0.10")],
}


def append_reserved():
    with stream().reserve(1) as reservation:
        reservation.write(fact())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("forget", ["DISCARD ALL", "DEALLOCATE ALL"])
@pytest.mark.parametrize("append_one", [append, append_reserved])
def test_appends_go_on_after_somebody_threw_prepared_statements_away(append_one, forget):
    """Every later append of the connection failed."""
    for _ in range(driver.PREPARED_FROM_USE + 1):
        append_one()
    with connection.cursor() as cursor:
        cursor.execute(forget)
    append_one()
    for _ in range(driver.PREPARED_FROM_USE):
        with transaction.atomic():
            append_one()
    with connection.cursor() as cursor:
        cursor.execute(forget)
    with pytest.raises(DatabaseError, match="does not exist"), transaction.atomic():
        CacheInvalidation.objects.exists()
        append_one()
    with transaction.atomic():
        append_one()
    assert CacheInvalidation.objects.count() == 2 * driver.PREPARED_FROM_USE + 3


@pytest.mark.django_db
class InterruptedOnce:
    """A cursor during whose first PREPARE a signal arrives, which raises in Python after the server is through."""

    def __init__(self, cursor):
        self.cursor, self.connection, self.rings = cursor, cursor.connection, True

    def execute(self, text, values=None):
        self.cursor.execute(text, values)
        if self.rings and text.startswith("PREPARE"):
            self.rings = False
            raise KeyboardInterrupt

    def fetchone(self):
        return self.cursor.fetchone()


@pytest.mark.django_db(transaction=True)
def test_a_statement_whose_preparation_was_interrupted_can_be_executed():
    """Its number was given to the next one, and each statement that was new to the session failed from then on."""
    with closing(driver.direct_connection(application_name="test")) as direct, direct.cursor() as cursor:
        interrupted = InterruptedOnce(cursor)
        with pytest.raises(KeyboardInterrupt):
            driver.execute_prepared(interrupted, "SELECT %(n)s::int", {"n": 1})
        for number in (1, 2):
            driver.execute_prepared(interrupted, f"SELECT %(n)s::int * {number}", {"n": 1})
            assert interrupted.fetchone() == (number,)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_comes_back_as_it_went(kind, prepared):
    value = VALUES[kind]
    kept = driver.KeptConnection(None, "test drivers")
    with closing(kept), kept.cursor() as cursor:
        if prepared:
            cursor.execute(f"SELECT %(value)s::{kind}, NULL::{kind}", {"value": value})
        else:
            cursor.execute(f"SELECT %s::{kind}, NULL::{kind}", [value])
        found, nothing = cursor.fetchone()
    assert (bytes(found) if kind == "bytea" else found) == value
    assert nothing is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("sql", "loaded"),
    [
        ("""'{"a": [1, 2.5, null]}'::jsonb""", {"a": [1, 2.5, None]}),
        ("'127.0.0.1'::inet", "127.0.0.1"),
        ("'{}'::text[]", []),
        ("ARRAY[NULL, 'a']", [None, "a"]),
    ],
)
def test_what_the_server_answers_is_loaded_alike(sql, loaded):
    with closing(driver.direct_connection(application_name="test")) as direct, direct.cursor() as cursor:
        cursor.execute(f"SELECT {sql}")
        assert cursor.fetchone() == (loaded,)


@pytest.mark.django_db
def test_several_statements_give_the_rows_of_the_last():
    statements = [
        driver.Statement("SELECT %(a)s::integer", {"a": 1}),
        driver.Statement("SELECT set_config('application_name', 'several', false)", again=False),
        driver.Statement("SELECT %(a)s::integer + n FROM generate_series(1, 3) AS n", {"a": 10}),
    ]
    for _ in range(2):  # the second time they are prepared
        assert driver.send_together(connection, statements) == [(11,), (12,), (13,)]
    assert (
        driver.send_together(connection, [driver.Statement("SELECT 1"), driver.Statement("SET jit = off", again=False)])
        == []
    )


@pytest.mark.django_db(transaction=True)
def test_of_several_statements_all_are_undone_by_the_error_of_one():
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE of_drivers (n integer CHECK (n < 5))")
    insert = "INSERT INTO of_drivers VALUES (%s)"
    with pytest.raises(DatabaseError) as refused:
        driver.send_together(connection, [driver.Statement(insert, [n]) for n in (1, 7)])
    assert driver.sqlstate(refused.value) == "23514"
    assert driver.transaction_status(connection.connection) == driver.IDLE
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM of_drivers")
        assert cursor.fetchone() == (0,)


@pytest.mark.django_db(transaction=True)
def test_the_status_of_a_transaction():
    connection.ensure_connection()
    assert driver.transaction_status(connection.connection) == driver.IDLE
    with transaction.atomic():
        connection.cursor().execute("SELECT 1")
        assert driver.transaction_status(connection.connection) in driver.OPEN
        with pytest.raises(DatabaseError), transaction.atomic():
            connection.cursor().execute("SELECT 1 / 0")
    assert driver.transaction_status(connection.connection) == driver.IDLE


@pytest.mark.django_db
def test_an_error_has_its_code_and_a_lost_connection_has_none_of_a_statement():
    with closing(driver.direct_connection(application_name="test")) as direct, direct.cursor() as cursor:
        with pytest.raises(driver.missing) as refused:
            cursor.execute("SELECT 1 FROM no_such_table")
        assert driver.sqlstate(refused.value) == "42P01"
        with pytest.raises(driver.connection_lost):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(driver.connection_lost):
            cursor.execute("SELECT 1")
        assert direct.closed
    assert driver.sqlstate(ValueError("of ours")) is None


@pytest.mark.django_db
def test_notifications_come_alone_with_an_answer_and_in_order():
    with (
        closing(driver.direct_connection(application_name="hears")) as hears,
        closing(driver.direct_connection(application_name="says")) as says,
        hears.cursor() as hearing,
        says.cursor() as saying,
    ):
        hearing.execute("LISTEN of_drivers")
        assert driver.receive(hears) == []
        saying.execute("SELECT pg_notify('of_drivers', n::text) FROM generate_series(1, 3) AS n")
        assert driver.ready_to_read([hears], 10) == [hears]
        wait_until(lambda: len(driver.receive(hears)) == 3)
        saying.execute("NOTIFY of_drivers, 'é'")
        wait_until(lambda: hearing.execute("SELECT 1") or len(driver.received(hears)) == 4)  # came with an answer
        assert [(one.pid, one.payload) for one in driver.received(hears)] == [
            (says.info.backend_pid, payload) for payload in ("1", "2", "3", "é")
        ]
        driver.received(hears).clear()
        assert driver.receive(hears) == []


@pytest.mark.django_db
def test_the_end_of_a_listening_connection_is_noticed():
    hears = driver.direct_connection(application_name="hears")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [hears.info.backend_pid])
    assert driver.ready_to_read([hears], 10) == [hears]
    with pytest.raises(driver.connection_lost):
        wait_until(lambda: driver.receive(hears) is None)  # the message first, then the end
    hears.close()


@pytest.mark.django_db
def test_a_text_with_its_values_is_for_any_session():
    values = {"names": ["a'b", "100%"], "id": 5}
    with closing(driver.direct_connection(application_name="test")) as direct, direct.cursor() as cursor:
        text = driver.with_values(cursor, "SELECT %(names)s::text[], %(id)s, '%%'", values)
    with connection.cursor() as cursor:
        cursor.execute(text)
        assert cursor.fetchone() == (["a'b", "100%"], 5, "%")


@pytest.mark.django_db
def test_rows_are_copied():
    with closing(driver.direct_connection(application_name="test")) as direct, direct.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE of_drivers (n integer, t text)")
        copy_in(cursor, "COPY of_drivers FROM STDIN", [b"1\ta\n2", b"\t\\N\n"])
        cursor.execute("SELECT * FROM of_drivers ORDER BY n")
        assert cursor.fetchall() == [(1, "a"), (2, None)]


@pytest.mark.django_db
def test_a_cursor_of_django_raises_its_errors_when_rows_are_copied():
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE of_drivers (n integer PRIMARY KEY) ON COMMIT DROP")
        copy_in(cursor, "COPY of_drivers FROM STDIN", [b"1\n", b"2\n"])
        with pytest.raises(IntegrityError), transaction.atomic():
            copy_in(cursor, "COPY of_drivers FROM STDIN", [b"2\n"])
        cursor.execute("SELECT n FROM of_drivers ORDER BY n")
        assert cursor.fetchall() == [(1,), (2,)]


# --- what cannot work is refused ----------------------------------------------------------------------------------

SITE = """
import os, sys
for name in {hidden}:
    sys.modules[name] = None  # importing it raises ImportError
import django
from django.conf import settings
where = {database}
settings.configure(
    DATABASES={{"default": where}}, INSTALLED_APPS={apps}, MIGRATION_MODULES={{}}, USE_TZ=True, SECRET_KEY="x",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", REPLSITE_WRITER="of-drivers",
)
try:
    django.setup()
except Exception as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
{code}
"""


def of_a_site(*, hidden: list[str], code: str = "", apps: tuple[str, ...] = ("streams",), **database: object) -> str:
    """What a site with these apps prints, or what it ends with, in an interpreter in which some packages are missing."""
    where = {
        "ENGINE": "django.db.backends.postgresql",
        **{name: connection.settings_dict[name] for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT")},
        **database,
    }
    script = SITE.format(hidden=hidden, database=where, apps=list(apps), code=code)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        cwd=PROJECT,
        env=os.environ,
    )
    return done.stdout + done.stderr


WRITES = f"""
from django.db import connection, transaction
from streams import registry
from streams.catalog.models import CacheInvalidation

def append():
    return registry.get("caches").append(CacheInvalidation(cache_name="drivers", keys=["a"]))

ids = append()
with transaction.atomic():
    ids += append()
try:
    with transaction.atomic():
        append()
        raise KeyError
except KeyError:
    pass
connection.close()  # a pool keeps it, and lends it again
ids += append()
registry.get("caches").wait_for(ids[-1])
is_other_here = any(name == {OTHER!r} and module is not None for name, module in sys.modules.items())
print("written", len(ids), is_other_here)
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"pool": True}] if is_psycopg3 else [{}])
def test_the_other_driver_is_not_needed(options):
    connection.ensure_connection()
    apps = ("streams", "streams.catalog")
    said = of_a_site(hidden=[OTHER], code=WRITES, apps=apps, OPTIONS=options)
    assert said.strip().endswith("written 3 False"), said
    assert CacheInvalidation.objects.filter(cache_name="drivers").count() == 3


@pytest.mark.django_db
def test_no_driver_is_refused_with_what_to_install():
    connection.ensure_connection()
    said = of_a_site(hidden=["psycopg", "psycopg2"])
    assert said.startswith("ImproperlyConfigured: ")
    assert "pip install 'psycopg2-binary" in said
    assert "TypeError" not in said


@pytest.mark.django_db
def test_the_pipeline_says_that_it_needs_psycopg2():
    connection.ensure_connection()
    apps = ("django.contrib.contenttypes", "django.contrib.auth", "streams", "state", "events", "pipeline")
    said = of_a_site(hidden=["psycopg2"], apps=apps)
    missing = "The app pipeline needs psycopg2" if is_psycopg3 else "Streams need a driver"
    assert said.startswith(f"ImproperlyConfigured: {missing}"), said


def found(**changes: object) -> list[str]:
    """IDs of what the check says of the database with these changes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(connections["default"], name, value)
        return [str(message.id) for message in check_driver(None)]


def test_this_database_is_well():
    assert found() == []
    assert "streams.E030" not in [message.id for message in run_checks()]


def test_an_engine_of_another_driver_is_refused():
    class Database:
        __name__ = f"{OTHER}.extensions"

    assert found(Database=Database()) == ["streams.E030"]


def test_another_database_is_refused_once():
    assert found(vendor="sqlite") == []  # replsite.E001 says it
    with override_settings(INSTALLED_APPS=["django.contrib.contenttypes", "streams"]):
        assert found(vendor="sqlite") == ["streams.E031"]


def test_values_apart_from_the_text_are_refused():
    options = {**connection.settings_dict, "OPTIONS": {"server_side_binding": True}}
    assert found(settings_dict=options) == ["streams.E032"]
