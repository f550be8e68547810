"""What a handler does to its transaction, session or thread with a fact is that fact's failure, and others go on."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from contextlib import suppress

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from streams.catalog.models import CacheInvalidation
from streams.db import driver
from streams.errors import HandlerFailed
from streams.follow import Begin, Handler, OnFailure, Reader, parked_facts, retry_parked
from streams.follow import handlers as declared
from tests.support.effects import TABLE, effects, effects_table, running
from tests.support.waiting import wait_until
from tests.support.writing import append, fact, ids, server_process, stream, terminate, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _table():
    with effects_table():
        yield


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def throw(error):
    raise error


def pass_over():
    with suppress(DatabaseError):
        execute("SELECT 1/0")


def close():
    connection.close()


def delete():
    del connections["default"]


def of_driver(name):
    getattr(connection.connection, name)()


def undo_and_go_on():
    of_driver("rollback")
    execute("SELECT 1")


#: Its effect cannot be taken back, and comes again with the next attempt. In a chunk it takes others along.
COMMIT = "commit of the driver"
#: What is parked, and a word of its error.
FAILS = {
    "exit": (lambda: sys.exit(0), "SystemExit"),
    "cancelled": (lambda: throw(asyncio.CancelledError()), "CancelledError"),
    "group": (lambda: throw(BaseExceptionGroup("several", [GeneratorExit(), ValueError()])), "several"),
    "unspeakable": (lambda: throw(Unspeakable()), "Unspeakable"),
    "nul": (lambda: throw(ValueError("\0\ud800\x1b" * 1000)), "ValueError"),
    "closed": (close, "closing its connection"),
    "closed below": (lambda: of_driver("close"), "closing its connection"),
    "deleted": (delete, "closing its connection"),
    "killed": (lambda: execute("SELECT pg_terminate_backend(pg_backend_pid())"), ""),
    "search path": (lambda: execute("SET search_path = pg_catalog"), "streams_storedcursor"),
    "role": (lambda: execute("SET ROLE pg_monitor"), "permission denied"),
    "isolation": (lambda: execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"), "ISOLATION"),
    "read only": (lambda: execute("SET TRANSACTION READ ONLY"), "read-only"),
    "rollback": (lambda: execute("ROLLBACK"), "ended its transaction itself"),
    COMMIT: (lambda: of_driver("commit"), "ended its transaction itself"),
    "chain": (lambda: execute("ROLLBACK AND CHAIN"), "ended its transaction itself"),
    "another": (lambda: execute("ROLLBACK; BEGIN"), "ended its transaction itself"),
    "another that is used": (lambda: execute("ROLLBACK; BEGIN; SELECT 1"), "ended its transaction itself"),
    "another after a comment": (lambda: execute("/* */ ABORT; BEGIN; SELECT 1"), "ended its transaction itself"),
    "rollback of the driver": (undo_and_go_on, "ended its transaction itself"),
    "interrupted": (lambda: throw(KeyboardInterrupt()), "KeyboardInterrupt"),
    "block left open": (lambda: transaction.atomic().__enter__(), "left a transaction.atomic block open"),
    "set rollback": (lambda: transaction.set_rollback(True), "passed over"),
    "passed over": (pass_over, "passed over"),
}
#: What is left behind in the session that a later fact has, and is that one's effect all the same.
STAYS = [
    "SET default_transaction_read_only = on",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET TIME ZONE 'Pacific/Kiritimati'; SET DateStyle = 'German'; SET client_encoding = 'SQL_ASCII'",
    "SET array_nulls = off; SET bytea_output = 'escape'; SET quote_all_identifiers = on",
    "SELECT pg_advisory_lock(5); SELECT pg_advisory_unlock_all()",
    "DEALLOCATE ALL",
]


def reader(act, **options):
    """Acts on the name of each fact, after its effect."""

    def handle(given):
        facts = (
            [(given.stream_id, given.cache_name)] if options.get("each") else [(f.token, f.rows[0][0]) for f in given]
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {TABLE} (reader, token) VALUES ('r', %s)", [(token,) for token, _ in facts]
            )
        for _, name in facts:
            act(name)

    options = {"on_failure": OnFailure.PARK, "attempts": 2, **options}
    return Reader("r", [Handler("caches", "r", handle, begin=Begin.OLDEST, retry_seconds=0.01, **options)])


def append_each(names):
    """A fact of each name, each between ordinary ones."""
    append()
    for name in names:
        stream().append(fact(name))
        append()
    wait_for_linear(ids()[-1])


@pytest.mark.parametrize("each", [True, False])
def test_what_a_handler_does_with_a_fact_is_its_failure(each):
    names = [name for name in FAILS if each or name != COMMIT]
    append_each(names)
    reader(lambda name: FAILS.get(name, [int])[0](), each=each).catch_up()
    bad = ids()[1::2]
    parked = {one.rows[0][0]: one for one in parked_facts("r")}
    assert [token for token in effects() if token not in bad] == ids()[::2]
    assert set(effects()) - {*ids()[::2]} <= {parked[COMMIT].token if each else 0}
    assert [*parked] == names
    assert {name: one.error for name, one in parked.items() if FAILS[name][1] not in one.error} == {}
    assert {one.attempts for one in parked.values()} == {2}


def test_what_a_handler_leaves_in_its_session_is_no_failure_of_the_next_fact():
    append_each(STAYS)
    made = reader(lambda name: execute(name) if name in STAYS else None, each=True)
    made.catch_up()
    assert effects() == ids()
    assert (made.facts_handled, made.facts_parked) == (len(ids()), 0)


def test_a_reader_that_stops_at_such_a_fact_names_it():
    append_each(["exit"])
    with pytest.raises(HandlerFailed, match=f"token {ids()[1]} .*HandlerEnded: SystemExit: 0"):
        reader(lambda name: name == "exit" and sys.exit(0), each=True, on_failure=OnFailure.STOP).catch_up()


# --- commit hooks ----------------------------------------------------------------------------------------------------

HOOKS = {
    "exit": lambda: sys.exit(0),
    "cancelled": lambda: throw(asyncio.CancelledError()),
    "error": lambda: throw(ValueError("of the hook")),
    "closed": close,
}


@pytest.fixture
def registered(monkeypatch):
    """``registered(act)`` declares the handler that ``parked retry`` finds."""

    def register(act):
        monkeypatch.setitem(declared._handlers, "r", {"caches": reader(act)._handlers[0]})

    return register


@pytest.mark.parametrize("each", [True, False])
def test_a_commit_hook_ends_no_reader(each, caplog):
    append_each(HOOKS)
    made = reader(lambda name: transaction.on_commit(HOOKS.get(name, int)), each=each)
    made.catch_up()
    assert effects() == ids()
    assert (made.facts_handled, made.facts_parked) == (len(ids()), 0)
    assert any(record.msg["event"] == "reader.commit_hook_failed" for record in caplog.records)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_retried_fact_whose_commit_hook_fails_is_handled(hook, registered):
    append(2)
    wait_for_linear(ids()[-1])
    reader(lambda name: throw(ValueError()), each=True).catch_up()
    registered(lambda name: transaction.on_commit(HOOKS[hook]))
    assert retry_parked("r") == (2, 0)
    assert effects() == ids()


@pytest.mark.parametrize("name", [name for name in FAILS if name != "interrupted"])
def test_a_retried_fact_fails_again_by_what_its_handler_does(name, registered):
    append(1)
    wait_for_linear(ids()[-1])
    reader(lambda name: throw(ValueError()), each=True).catch_up()
    registered(lambda _: FAILS[name][0]())
    assert retry_parked("r") == (0, 1)
    assert parked_facts("r").get().attempts == 3
    assert effects() == ([] if name != COMMIT else ids())
    assert connection.in_atomic_block is False


# --- what stays ------------------------------------------------------------------------------------------------------


@pytest.fixture
def other(monkeypatch):
    """A second alias of the database."""
    unguarded = inspect.getclosurevars(BaseDatabaseWrapper.ensure_connection).nonlocals["real_ensure_connection"]
    monkeypatch.setattr(
        BaseDatabaseWrapper, "ensure_connection", unguarded
    )  # a test knows its aliases before it begins
    monkeypatch.setitem(connections.settings, "other", {**connections.settings["default"]})


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.usefixtures("other")
def test_a_session_of_another_database_that_is_killed_is_opened_again(atomic):
    append_each(["bad"])

    def act(name):
        with connections["other"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())" if name == "bad" else "SELECT 1")

    reader(act, each=True, atomic=atomic, attempts=1).catch_up()
    assert [one.token for one in parked_facts("r")] == [ids()[1]]


def test_wrappers_of_statements_that_a_handler_leaves_behind_are_removed():
    append_each(["wrap"])

    def refuse(call, *given):
        sys.exit(4)

    made = reader(lambda name: name == "wrap" and connection.execute_wrappers.append(refuse), each=True)
    made.catch_up()
    assert (effects(), made.facts_parked) == (ids(), 0)


@pytest.mark.parametrize("end", [int, lambda: sys.exit(0), lambda: throw(ValueError())])
def test_a_forked_child_that_comes_back_from_a_handler_ends(end):
    """It would go on as the reader, and roll the transaction of its parent back in the session that both have."""
    append_each(["fork"])

    def act(name):
        if name == "fork":
            if not (child := os.fork()):
                signal.alarm(20)
                end()
                return
            os.waitpid(child, 0)

    made = reader(act, each=True)
    made.catch_up()
    assert effects() == ids()
    assert (made.facts_handled, made.facts_parked) == (len(ids()), 0)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_session_that_is_lost_after_a_handler_without_transaction_ends_no_reader(parts, monkeypatch):
    append(3)
    wait_for_linear(ids()[-1])
    calls = []

    def handle(chunk):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        calls.extend(fact.token for fact in chunk)
        if len(calls) == 3:
            terminate(server_process())

    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    made = Handler("caches", "r", handle, begin=Begin.OLDEST, atomic=False, chunk_rows=3 // parts)
    assert Reader("r", [made]).catch_up() == 3
    assert calls == ids()


@pytest.mark.parametrize("atomic", [True, False])
def test_a_session_that_is_lost_between_facts_is_no_attempt(atomic, monkeypatch):
    pids = []

    def handle(chunk):
        execute(f"INSERT INTO {TABLE} (reader, token) VALUES ('r', {chunk.facts[0].token})")
        pids.append(server_process())

    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    made = Handler("caches", "r", handle, begin=Begin.OLDEST, atomic=atomic, attempts=1, chunk_rows=1)
    with running(made) as runs:
        for count in (1, 2, 3):
            append()
            wait_until(lambda count=count: len(effects()) == count or runs.error, what="the effect")
            wait_until(lambda: runs.reader.facts_handled == len(ids()) or runs.error, what="it is committed")
            if pids:
                terminate(pids[-1])
        assert runs.error is None
    assert effects() == ids()


if is_psycopg3:  # which has a pool

    def test_a_pool_lends_no_session_that_a_handler_spoiled(monkeypatch):
        given = connections.settings["default"]
        options = {**given["OPTIONS"], "pool": {"min_size": 1, "max_size": 4}}
        monkeypatch.setitem(
            connections.settings, "default", {**given, "OPTIONS": options}
        )  # for threads that begin now
        append_each([*STAYS, "killed"])

        def act(name):
            if name == "killed":
                FAILS[name][0]()
            elif name in STAYS:
                execute(name)

        try:
            reader(act, each=True).catch_up()
        finally:
            connection._connection_pools.pop("default").close()
        assert [one.rows[0][0] for one in parked_facts("r")] == ["killed"]
        assert effects() == [token for token in ids() if token != ids()[-2]]


# --- innocents ----------------------------------------------------------------------------------------------------


def send_prepared():
    """As an append does; the session may have lost what it had prepared."""
    driver.send_together(connection, [driver.Statement("SELECT %(one)s::int", {"one": 1})])


def ask_with_nul():
    # psycopg2 sends nothing, psycopg 3 begins the transaction before it looks
    with suppress(ValueError, DatabaseError):
        connection.cursor().execute("SELECT %s", ["\0"])


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (int, int),
        (ask_with_nul, int),
        (send_prepared, lambda: execute("DEALLOCATE ALL")),
        (lambda: list(CacheInvalidation.objects.all()), int),
        (int, lambda: transaction.get_connection().in_atomic_block and execute("SAVEPOINT a; ROLLBACK TO a")),
    ],
    ids=["nothing", "a value that is refused", "statements that are prepared again", "a read", "a savepoint"],
)
@pytest.mark.parametrize("atomic", [True, False])
def test_whoever_does_nothing_to_the_transaction_is_not_refused(first, last, atomic):
    append(3)
    wait_for_linear(ids()[-1])
    seen = []

    def handle(one):
        first()
        seen.append(one.stream_id)
        last()

    options = {"each": True, "attempts": 1, "atomic": atomic, "begin": Begin.OLDEST}
    assert Reader("r", [Handler("caches", "r", handle, **options)]).catch_up() == 3
    assert seen == ids()
