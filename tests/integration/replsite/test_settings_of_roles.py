"""Settings that a role or a database has for its sessions (``ALTER ROLE … SET``) change no result of the site's."""

from __future__ import annotations

import datetime
import os
import time
from contextlib import closing

import pytest
from django.db import connection, transaction
from django.db.backends.postgresql.base import Database
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from events.models import Event, ForgottenRoom, IgnoredUser
from events.models.summaries import RoomSummary
from events.sending.send import create_room
from events.sync.sync import sync
from events.visibility.access import forget_room, set_ignored_users
from pipeline.connections import connect
from pipeline.source import read_rows
from pipeline.source.offsets import pieces
from pipeline.source.read_rows import ReadParameters, read_piece
from streams.catalog.models import CacheInvalidation, Typing
from streams.checks import check_session
from streams.db import driver
from streams.db.session_settings import RELIED_ON
from streams.follow import Begin, Handler
from streams.homeserver.typing import set_typing
from streams.models import StreamPosition
from streams.testing import forget_writers
from streams.writing.name import writer_name
from tests.integration.events.test_purging import middle
from tests.integration.pipeline.test_archive import purge
from tests.integration.pipeline.test_restore import restore, stored
from tests.support.effects import running
from tests.support.impatient_server import impatient
from tests.support.made_rooms import public_room
from tests.support.persisted_rooms import persist_all
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import positioned, start_replication
from tests.support.writing import append, ids, in_thread, linear, session, store_positions, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "a\\b \\u0041 \\' \" é \n"
FORMS = {
    "array_nulls": "off",
    "IntervalStyle": "iso_8601",
    "DateStyle": "German",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "TimeZone": "Asia/Kathmandu",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "client_encoding": "LATIN1",
    "lc_numeric": "C",
}
#: What a literal is.
STRINGS = {"standard_conforming_strings": "off", "backslash_quote": "off"}  # fmt: skip
LIMITS = {
    "statement_timeout": "2s", "lock_timeout": "500ms", "idle_in_transaction_session_timeout": "2s",
    "synchronous_commit": "off",
}  # fmt: skip
LEVELS = [{"default_transaction_isolation": level} for level in ("repeatable read", "serializable")]


@pytest.fixture(
    params=[FORMS, STRINGS, LIMITS, *LEVELS], ids=["forms", "strings", "limits", "repeatable read", "serializable"]
)
def settings_of_role(request):
    with impatient(**request.param):
        forget_writers()
        yield request.param
        forget_writers()


def test_appends_are_stored_read_and_followed(settings_of_role, start_manage):
    with positioned(start_replication(start_manage)) as client:
        fact = CacheInvalidation(cache_name=TEXT, keys=[TEXT, None])
        (first,) = stream().append(fact)
        with transaction.atomic():
            last = append(2)[-1]
        client.read_until(f"RDATA caches master {last} ")
        assert len(client.of("RDATA caches master")) == 3
    fact.refresh_from_db()
    assert (fact.cache_name, fact.keys) == (TEXT, [TEXT, None])
    assert [one.stream_id for one in stream().read().facts] == ids() == [first, last - 1, last]
    wait_until(lambda: linear() >= last)


def test_facts_of_a_writer_are_counted(settings_of_role):
    wait_for_linear(append()[0])
    assert StreamPosition.objects.get(stream="caches").facts_written == 1


def test_rooms_are_stored(settings_of_role):
    room = public_room()
    room.state("m.room.name", "", {"name": TEXT + "\0"})
    room.state("m.room.canonical_alias", "", {"alias": "#a\\b:a.test"})
    room.message()
    assert not any(outcome.refused for outcome in persist_all(room.events, 3))
    assert Event.objects.count() == len(room.events)
    assert RoomSummary.objects.get().name == TEXT + "\N{REPLACEMENT CHARACTER}"


def test_users_talk(settings_of_role):
    """At REPEATABLE READ nobody could make a room or send."""
    room = create_room("@ann:site")
    room.invite("@ann:site", "@bob:site")
    room.join("@bob:site")
    said = room.send("@bob:site", "m.room.message", {"body": TEXT})
    (news,) = sync("@ann:site").rooms.joined
    assert news.timeline[-1].event_id == said.event_id
    room.leave("@bob:site")
    forget_room("@bob:site", room.room_id)
    assert ForgottenRoom.objects.count() == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize(
    ("one", "other", "ends"),
    [
        (
            lambda: set_typing("!a:site", "@ann:site", True),
            lambda: set_typing("!a:site", "@bob:site", True),
            lambda: Typing.objects.latest("stream_id").user_ids == ["@ann:site", "@bob:site"],
        ),
        (
            lambda: set_ignored_users("@ann:site", ["@x:site"]),
            lambda: set_ignored_users("@ann:site", ["@y:site"]),
            lambda: [*IgnoredUser.objects.values_list("ignored_user_id", flat=True)] == ["@y:site"],
        ),
    ],
    ids=["typing", "ignored users"],
)
def test_what_waits_for_a_lock_sees_what_its_last_holder_has_committed(level, one, other, ends):
    with impatient(default_transaction_isolation=level):
        with transaction.atomic():
            connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            one()
            waits = in_thread(other)
            time.sleep(0.3)
        waits.join()
        assert ends()


def test_a_text_stays_one_whatever_backslashes_are(settings_of_role):
    """psycopg2 reads the setting once, when it connects: to change it in the session alone would let a text end its literal."""
    texts = [TEXT, "\\", "\\'; DROP TABLE streams_cacheinvalidation; --"]
    for text in texts:
        fact = CacheInvalidation(cache_name=text, keys=[text])
        stream().append(fact)
        fact.refresh_from_db()
        assert (fact.cache_name, fact.keys) == (text, [text])
    with (
        closing(driver.direct_connection(application_name="test")) as direct,
        closing(connect(driver.dsn(), "test")) as raw,
    ):
        for own in (direct, raw):
            with own.cursor() as cursor:
                cursor.execute(r"SELECT %s::text[], '\\'", [texts])
                assert cursor.fetchone() == (texts, "\\\\")


def test_a_pooler_that_lends_sessions_with_other_settings_is_found(monkeypatch):
    """What a session sets for itself does not hold for the next transaction, which has another one."""

    def found() -> list[str]:
        return [message.msg for message in check_session(None, ["default"]) if message.id == "streams.E033"]

    with impatient(**(FORMS | STRINGS | {"extra_float_digits": "3"})):
        assert found() == []
        monkeypatch.setitem(connection.settings_dict, "DIRECT", {"PORT": connection.settings_dict["PORT"]})
        connection.settings_dict["OPTIONS"].pop("options", None)
        connection.close()
        wrong = {name for name in RELIED_ON if any(f" {name} = " in text for text in found())}
        assert wrong == {*RELIED_ON} - {"extra_float_digits", *([] if is_psycopg3 else ["standard_conforming_strings"])}
    assert found() == []


# --- readers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
@pytest.mark.parametrize("atomic", [True, False])
def test_a_cursor_that_cannot_be_moved_is_no_failure_of_the_handler(atomic, limit):
    """Nor is a handler without transaction, such as one that sends mail, called again and again meanwhile."""
    called: list[int] = []
    made = Handler(
        "caches", "r", lambda chunk: called.extend(fact.token for fact in chunk), begin=Begin.OLDEST, atomic=atomic, attempts=2,
        retry_seconds=0.01,
    )  # fmt: skip
    with impatient(**{limit: "200ms"}):
        wait_for_linear(append()[0])
        with running(made) as runs:
            wait_until(lambda: runs.reader.facts_handled == 1)
            with session() as cursor:
                cursor.execute("BEGIN; SELECT FROM streams_storedcursor FOR UPDATE")
                append()
                store_positions()
                wait_until(lambda: called.count(ids()[-1]) > (3 if atomic else 0))
                time.sleep(1.5)
            wait_until(lambda: runs.error or runs.reader.facts_handled == 2)
        assert runs.error is None
    assert called == ids() or atomic


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_handler_may_take_longer_than_a_heartbeat(level, each, settings):
    """A heartbeat changes the row that the handler's transaction changes at its end."""
    settings.REPLSITE_HEARTBEAT_SECONDS = 0.25
    made = Handler(
        "caches", "r", lambda _: (connection.cursor().execute("SELECT 1"), time.sleep(0.6)), begin=Begin.OLDEST, each=each,
        attempts=2, retry_seconds=0.01,
    )  # fmt: skip
    with impatient(default_transaction_isolation=level):
        wait_for_linear(append(2)[-1])
        with running(made) as runs:
            wait_until(lambda: runs.error or runs.reader.facts_handled == 2)
        assert runs.error is None


def test_durations_and_floats_are_read(settings_of_role):
    with connection.cursor() as cursor:
        cursor.execute("SELECT interval '1 day 2 hours', 0.1::float8 + 0.2::float8")
        assert cursor.fetchone() == (datetime.timedelta(days=1, hours=2), 0.1 + 0.2)


def test_an_archive_is_restored(settings_of_role, tmp_path):
    room_id = stored("v10_gap")
    before = Event.objects.count()
    outcome = purge("history", room_id, "--before-token", f"t{middle(room_id, 0.7)}-0", "--archive", str(tmp_path))
    assert Event.objects.count() < before
    restore(outcome["archive"]["folder"])
    assert Event.objects.count() == before


def test_spark_reads(settings_of_role):
    text = "Grüße \\ '"
    found = stream().append(CacheInvalidation(cache_name=text, keys=[text, None]))
    parameters = ReadParameters(driver.dsn(), "caches", ("cache_name", "keys"))
    (piece,) = pieces({writer_name(): (found[0] - 1, found[0])}, [])
    try:
        rows = [row for batch in read_piece(parameters, piece) for row in batch.to_pylist()]
    finally:
        for _, one in read_rows._kept:
            one.close()
        read_rows._kept.clear()
    assert rows == [{"cache_name": text, "keys": [text, None]}]


@pytest.mark.parametrize(
    "settings_of_role",
    [FORMS, *(pytest.param(others, marks=pytest.mark.scenario) for others in (STRINGS, LIMITS, *LEVELS))],
    indirect=True,
)
def test_migrations_can_be_applied(settings_of_role, database_url, run_manage):
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA anew")
    try:
        done = run_manage(
            "migrate",
            "-v",
            "0",
            timeout=2 * DEADLINE_SECONDS,
            env={"DATABASE_URL": f"{database_url}?options=-csearch_path%3Danew"},
        )
        assert done.returncode == 0, done.stderr
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA anew CASCADE")


def test_a_schema_in_which_everybody_may_make_functions_is_found(run_manage):
    """So it is in a database that was made before PostgreSQL 15."""
    assert "streams.W018" not in run_manage("check", "--database", "default", timeout=DEADLINE_SECONDS).stderr
    with connection.cursor() as cursor:
        cursor.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    try:
        done = run_manage("check", "--database", "default", timeout=DEADLINE_SECONDS)
        assert "streams.W018" in done.stderr and "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in done.stderr
    finally:
        with connection.cursor() as cursor:
            cursor.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")


def test_sessions_of_locks_assume_the_role_that_django_assumes(monkeypatch):
    """Else a login that has its rights by SET ROLE alone could not append."""
    name = f"Assumed\\ {os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE ROLE "{name}"')
    try:
        monkeypatch.setitem(
            connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], "assume_role": name}
        )
        for connect in (
            lambda: driver.direct_connection(application_name="test"),
            lambda: Database.connect(driver.dsn()),
        ):
            with closing(connect()) as own, own.cursor() as cursor:
                cursor.execute("SELECT current_user")
                assert cursor.fetchone() == (name,)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f'DROP ROLE "{name}"')
