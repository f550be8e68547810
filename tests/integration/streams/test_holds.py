"""Open appends as PostgreSQL knows them: whatever the client, no look passes a fact that may still come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from asgiref.sync import sync_to_async
from django.apps.registry import Apps
from django.db import DatabaseError, IntegrityError, connection, connections, models, transaction

from streams.core.tokens import VectorToken
from streams.db import driver
from streams.db.copy_in import copy_in
from streams.holds.constraint import StreamHolds
from streams.holds.installed_sql import FUNCTIONS, class_of
from streams.holds.look import Seen, holders, look
from streams.holds.weaknesses import weaknesses
from streams.reading.rows import existing_rows
from tests.support.held_tables import ORDERS, Order, Session, Sessions, drop, held_orders, sessions

pytestmark = pytest.mark.django_db(transaction=True)
REFUSED, FIXED = "23514", "23001"


@pytest.fixture
def session() -> Iterator[Sessions]:
    with held_orders(), sessions() as make:
        yield make


@pytest.fixture
def writer(session: Sessions) -> Session:
    return session()


@pytest.fixture
def reader(session: Sessions) -> Session:
    return session()


def refused(session: Session, sql: str, *values: object) -> str:
    """The text of the guard's error, or of the one that refuses changes."""
    with pytest.raises(driver.DatabaseError) as raised:
        session(sql, *values)
    assert driver.sqlstate(raised.value) in (REFUSED, FIXED), raised.value
    return str(raised.value)


def texts_upto(session: Session, position: int) -> list[str]:
    """The facts up to a position that was looked up, by the program's own reader."""
    rows, reached = existing_rows(session.cursor, ORDERS, None, 0, position, 1000)
    assert reached == position
    return [fact.row[0] for fact in rows]


# --- the mechanism ------------------------------------------------------------------------------------------------


def test_a_position_never_passes_an_open_append(session: Sessions, writer: Session, reader: Session):
    other = session()
    assert reader.seen() == Seen(given=1, position=1, open={})
    writer("BEGIN")
    assert writer.append("first") == [2]
    assert other.append("second") == [3]
    assert reader.seen() == Seen(given=3, position=1, open={0: 1})
    assert texts_upto(reader, 1) == []
    writer("COMMIT")
    assert reader.seen() == Seen(given=3, position=3, open={})
    assert texts_upto(reader, 3) == ["first", "second"]


@pytest.mark.parametrize("end", ["ROLLBACK", "client", "backend"])
def test_what_ends_without_a_commit_holds_nothing_back(session: Sessions, writer: Session, reader: Session, end: str):
    writer("BEGIN")
    assert writer.append("never") == [2]
    session().append("second")
    if end == "ROLLBACK":
        writer("ROLLBACK")
    elif end == "client":
        writer.close()
    else:
        pid = writer.one("SELECT pg_backend_pid()")
        reader("SELECT pg_terminate_backend(%s, 60000)", pid)
    while reader.locks():  # the server notices a closed connection a moment later
        pass
    assert reader.seen().position == 3
    assert texts_upto(reader, 3) == ["second"]


KINDS = {
    "values": "INSERT INTO held_order (text) VALUES ('x')",
    "many values": "INSERT INTO held_order (text) VALUES ('x'), ('x'), ('x')",
    "defaults": "INSERT INTO held_order DEFAULT VALUES",
    "select, sorted": "INSERT INTO held_order (text) SELECT 'x' FROM generate_series(1, 5) i ORDER BY i DESC",
    "nextval in the select": "INSERT INTO held_order (stream_id, text) SELECT nextval('orders_stream_seq'), 'x' "
    "FROM generate_series(1, 5)",
    "nextval in a subquery": "INSERT INTO held_order (stream_id, text) VALUES ((SELECT nextval('orders_stream_seq')), 'x')",
    "nextval in a CTE": "WITH n AS MATERIALIZED (SELECT nextval('orders_stream_seq') AS id FROM generate_series(1, 3)) "
    "INSERT INTO held_order (stream_id) SELECT id FROM n",
    "nextval in RETURNING": "WITH o AS (INSERT INTO held_other VALUES (1) RETURNING nextval('orders_stream_seq') AS id) "
    "INSERT INTO held_order (stream_id) SELECT id FROM o",
    "three at once": "WITH a AS (INSERT INTO held_order (text) VALUES ('a') RETURNING 1), b AS (INSERT INTO held_order (text) "
    "VALUES ('b') RETURNING 1) INSERT INTO held_order (text) SELECT 'c' FROM b",
    "prepared": "PREPARE p AS INSERT INTO held_order (text) VALUES ('x'); EXECUTE p; EXECUTE p; EXECUTE p; EXECUTE p; EXECUTE p; "
    "EXECUTE p; EXECUTE p; DEALLOCATE p",
    "conflict": "INSERT INTO held_order (number) VALUES (1) ON CONFLICT (number) DO NOTHING; "
    "INSERT INTO held_order (number) VALUES (1), (2) ON CONFLICT (number) DO NOTHING",
    "merge": "MERGE INTO held_order f USING generate_series(5, 7) i ON f.number = i WHEN NOT MATCHED THEN "
    "INSERT (number) VALUES (i)",
    "view": "INSERT INTO held_view (text) VALUES ('x')",
    "another table's trigger": "INSERT INTO held_source VALUES (1), (2)",
    "block with an exception": "DO $$ BEGIN BEGIN INSERT INTO held_order (text) VALUES ('x'); RAISE 'no'; EXCEPTION WHEN "
    "raise_exception THEN NULL; END; INSERT INTO held_order (text) VALUES ('y'); END $$",
    "replica": "SET LOCAL session_replication_role = replica; INSERT INTO held_order (text) VALUES ('x')",
    "cursor": "DO $$ DECLARE c refcursor; n bigint; BEGIN OPEN c FOR SELECT held_append(i) FROM generate_series(1, 3) i; "
    "FETCH c INTO n; "
    "CLOSE c; END $$",
}


@pytest.fixture
def around(session: Sessions) -> Iterator[None]:
    """What kinds of statements need: other tables, a view, triggers, a function."""
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE TABLE held_other (id bigint); CREATE TABLE held_source (id int);
            CREATE VIEW held_view AS SELECT stream_id, text FROM held_order;
            ALTER VIEW held_view ALTER stream_id SET DEFAULT nextval('orders_stream_seq');
            CREATE FUNCTION held_copy() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO held_order (text) VALUES ('by a trigger'); RETURN NULL; END $$;
            CREATE TRIGGER held_copy AFTER INSERT ON held_source FOR EACH ROW EXECUTE FUNCTION held_copy();
            CREATE CONSTRAINT TRIGGER held_late AFTER INSERT ON held_source DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION held_copy();
            CREATE FUNCTION held_append(i int) RETURNS bigint LANGUAGE plpgsql AS
                $$ DECLARE n bigint; BEGIN
                   INSERT INTO held_order (text) VALUES ('fact ' || 1 / (i - 2)) RETURNING stream_id INTO n;
                   RETURN n; END $$""")
    yield
    drop("held_source", "held_other")
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION held_copy, held_append")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_insert_is_held_below_its_ids(around: None, writer: Session, reader: Session, kind: str):
    reader.append("before")
    writer("BEGIN")
    writer(KINDS[kind])
    mine = [row[0] for row in writer("SELECT stream_id FROM held_order WHERE stream_id > 2 ORDER BY 1")]
    assert mine
    assert reader.locks() >= 1
    assert reader.seen().position < mine[0]
    writer("SET CONSTRAINTS ALL IMMEDIATE")
    writer("COMMIT")
    assert reader.locks() == 0
    assert reader.seen().position == reader.one("SELECT max(stream_id) FROM held_order")


def test_copy_is_an_append(writer: Session, reader: Session):
    writer("BEGIN")
    writer.copy("held_order (text)", "a\nb\nc\n")
    assert reader.seen() == Seen(given=4, position=1, open={0: 1})
    writer("COMMIT")
    assert texts_upto(reader, reader.seen().position) == ["a", "b", "c"]


def test_a_frozen_copy_is_seen_by_nobody_before_its_commit(writer: Session, reader: Session):
    """All snapshots see its rows. But PostgreSQL freezes only in tables that the same transaction has made or emptied."""
    writer("BEGIN")
    with pytest.raises(driver.DatabaseError, match="cannot perform COPY FREEZE"):
        copy_in(writer.cursor, "COPY held_order (text) FROM STDIN (FREEZE)", [b"a\n"])
    writer("ROLLBACK")
    writer("BEGIN; CREATE TABLE held_child () INHERITS (held_order)")
    writer("SELECT streams_hold_table('held_order', 'orders', 'orders_stream_seq')")
    copy_in(writer.cursor, "COPY held_child (id, text) FROM STDIN (FREEZE)", [b"1\ta\n2\tb\n"])
    assert reader.seen() == Seen(given=3, position=1, open={0: 1})
    reader("SET lock_timeout = 10")
    with pytest.raises(driver.lock_timed_out):  # who makes it one of the stream's tables keeps them locked
        reader("SELECT FROM held_order")
    writer("COMMIT")
    assert texts_upto(reader, reader.seen().position) == ["a", "b"]
    writer("DROP TABLE held_child")


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_writer_may_keep_one_snapshot(session: Sessions, writer: Session, reader: Session, isolation: str):
    writer(f"BEGIN ISOLATION LEVEL {isolation}")
    writer("SELECT count(*) FROM held_order")
    session().append("a", "b", "c")
    assert writer.append("late") == [5]
    assert reader.seen() == Seen(given=5, position=4, open={0: 4})
    writer("COMMIT")


def test_a_block_that_commits_holds_again(writer: Session, reader: Session):
    writer("DO $$ BEGIN FOR i IN 1..3 LOOP INSERT INTO held_order (text) VALUES ('x'); COMMIT; END LOOP; END $$")
    assert reader.seen() == Seen(given=4, position=4, open={})


# --- locks and memory ---------------------------------------------------------------------------------------------


def test_a_transaction_has_one_lock_for_each_stream(writer: Session, reader: Session):
    writer("BEGIN")
    for _ in range(20):
        writer.append("x", "y")
    assert reader.locks() == 1
    writer("DO $$ BEGIN FOR i IN 1..20 LOOP BEGIN INSERT INTO held_order (text) VALUES ('x'); RAISE 'no'; EXCEPTION WHEN "
           "raise_exception THEN NULL; END; END LOOP; END $$")  # fmt: skip
    assert reader.locks() == 1
    assert reader.seen().position == 1
    writer("COMMIT")


def test_a_rolled_back_savepoint_gives_its_lock_back(writer: Session, reader: Session):
    writer("BEGIN; SAVEPOINT a")
    writer.append("dead")
    assert reader.seen().position == 1
    writer("ROLLBACK TO a")
    assert reader.seen() == Seen(given=2, position=2, open={})
    assert writer.append("alive") == [3]
    assert reader.seen() == Seen(given=3, position=2, open={0: 2})
    writer("SAVEPOINT b")
    writer.append("dead")
    writer("ROLLBACK TO b; RELEASE a")
    assert reader.seen() == Seen(given=4, position=2, open={0: 2})
    writer("COMMIT")


def test_a_released_savepoint_leaves_its_lock_to_the_transaction(writer: Session, reader: Session):
    writer("BEGIN; SAVEPOINT a; SAVEPOINT b")
    writer.append("x")
    writer("RELEASE b; RELEASE a; SAVEPOINT c")
    writer.append("y")
    writer("ROLLBACK TO c")
    assert reader.seen() == Seen(given=3, position=1, open={0: 1})
    writer("COMMIT")
    assert texts_upto(reader, reader.seen().position) == ["x"]


@pytest.mark.parametrize("cursor", ["SQL", "plpgsql"])
def test_a_cursor_that_fails_does_not_take_the_lock_along(around: None, writer: Session, reader: Session, cursor: str):
    writer("BEGIN")
    if cursor == "SQL":
        writer("DECLARE c CURSOR FOR SELECT held_append(i) FROM generate_series(1, 3) i; FETCH 1 FROM c; SAVEPOINT s")
        with pytest.raises(driver.DatabaseError, match="division by zero"):
            writer("FETCH 1 FROM c")
        writer("ROLLBACK TO s")
    else:
        writer("""DO $$ DECLARE c refcursor; n bigint; BEGIN
            OPEN c FOR SELECT held_append(i) FROM generate_series(1, 3) i;
            BEGIN FETCH c INTO n; EXCEPTION WHEN others THEN NULL; END;
            BEGIN FETCH c INTO n; EXCEPTION WHEN division_by_zero THEN NULL; END; END $$""")
    assert writer.one("SELECT stream_id FROM held_order") == 2
    assert reader.locks() == 1
    assert reader.seen().position == 1
    writer.append("one more")
    assert reader.seen().position == 1
    writer("COMMIT")
    assert texts_upto(reader, reader.seen().position) == ["fact -1", "one more"]


@pytest.mark.parametrize("set_by_hand", ["1", "0", "3", "999999", "-5", str(1000 - 2**40), str(-(2**63))])
def test_a_memory_that_somebody_sets_never_switches_the_hold_off(
    session: Sessions, writer: Session, reader: Session, set_by_hand: str
):
    session().append("a", "b")
    number = reader.one("SELECT number FROM streams_held WHERE stream = 'orders'")
    writer(f"SET streams.held{number}_0 = '{set_by_hand}'")
    writer("BEGIN")
    assert writer.append("held") == [4]
    assert reader.locks() == 1
    assert reader.seen().position <= 3
    writer("COMMIT")
    assert reader.seen().position == 4


def test_a_lock_that_a_stranger_holds_exclusively_blocks_no_append(session: Sessions, writer: Session, reader: Session):
    stranger = session()
    key = "(number::bigint << 52) | 1"
    stranger(f"SELECT pg_advisory_lock({key}) FROM streams_held WHERE stream = 'orders'")
    writer("BEGIN; SET LOCAL lock_timeout = '5s'")
    assert writer.append("x") == [2]
    assert reader.seen() == Seen(given=2, position=0, open={0: 0})
    writer("COMMIT")
    assert reader.seen().position == 2


def test_unlocking_everything_leaves_the_hold(writer: Session, reader: Session):
    writer("BEGIN")
    writer.append("x")
    writer("SELECT pg_advisory_unlock_all()")
    writer("RESET ALL; DISCARD SEQUENCES")
    assert reader.seen().position == 1
    writer.append("y")
    assert reader.seen().position == 1
    writer("COMMIT")


# --- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [31, 32, 39, 40, 41])
def test_ids_go_beyond_what_a_key_can_hold(session: Sessions, writer: Session, reader: Session, bits: int):
    start = (1 << bits) - 2
    reader("SELECT setval('orders_stream_seq', %s)", start)
    other = session()
    writer("BEGIN")
    writer.append("first")
    for n in range(2, 6):
        assert other.append("x") == [start + n]
        assert reader.seen() == Seen(given=start + n, position=start, open={0: start})
    writer("COMMIT")
    assert reader.seen().position == start + 5


def test_a_lock_that_is_younger_than_the_look_changes_nothing(session: Sessions, reader: Session):
    """A look reads the sequence first. An append that begins in between has a bound above what was read."""
    other = session()
    other.append("a", "b")
    other("SELECT pg_advisory_lock_shared((number::bigint << 52) | 500) FROM streams_held WHERE stream = 'orders'")
    assert reader.seen() == Seen(given=3, position=3, open={0: 500})


# --- who may write what -------------------------------------------------------------------------------------------


def test_writers_have_positions_of_their_own(session: Sessions, writer: Session, reader: Session):
    other = session()
    writer("SET streams.writer = 'north'")
    other("SET streams.writer = 'south'")
    writer("BEGIN")
    assert writer.append("n", returning="instance_name") == ["north"]
    assert other.append("s", returning="instance_name") == ["south"]
    seen = reader.seen()
    assert seen == Seen(given=3, position=1, open={class_of("north"): 1})
    assert [seen.position_of(name) for name in ("north", "south", "master")] == [1, 3, 3]
    assert seen.token(["north", "south"]) == VectorToken(1, {"south": 3})
    # A session without a name may write for anybody, so it holds everybody back.
    unnamed = session()
    unnamed("BEGIN")
    unnamed("INSERT INTO held_order (instance_name) VALUES ('south')")
    other.append("s")
    seen = reader.seen()
    assert seen.open == {class_of("north"): 1, 0: 3}
    assert [seen.position_of(name) for name in ("north", "south")] == [1, 3]
    unnamed("COMMIT")
    writer("COMMIT")
    assert reader.seen().token(["north", "south"]) == VectorToken(5)


def test_a_transaction_may_change_its_writer(writer: Session, reader: Session):
    writer("BEGIN; SET LOCAL streams.writer = 'north'")
    writer.append("n")
    writer("SET LOCAL streams.writer = 'south'")
    assert writer.append("s", returning="instance_name") == ["south"]
    assert reader.seen() == Seen(given=3, position=1, open={class_of("north"): 1, class_of("south"): 2})
    writer("COMMIT")
    writer.append("m")
    assert reader.one("SELECT instance_name FROM held_order WHERE stream_id = 4") == "master"


def test_the_class_of_a_writer_is_the_same_on_both_sides(writer: Session, reader: Session):
    for name in ("north", "søuth", "雪", "x" * 200):
        writer("BEGIN")
        writer("SELECT set_config('streams.writer', %s, true)", name)
        writer.append("x")
        assert list(reader.seen().open) == [class_of(name)]
        writer("COMMIT")


def test_what_was_not_held_is_refused(session: Sessions, writer: Session, reader: Session):
    writer.append("first")
    fetched = writer.one("SELECT nextval('orders_stream_seq')")
    said = refused(writer, "INSERT INTO held_order (stream_id) VALUES (%s)", fetched)
    assert "held_order" in said and str(fetched) in said and "streams_hold(stream)" in said
    refused(writer, "INSERT INTO held_order (stream_id) VALUES (77)")
    refused(writer, "INSERT INTO held_order (stream_id) VALUES (-3)")
    with pytest.raises(driver.DatabaseError, match="refused"):
        writer.copy("held_order (stream_id, text)", "2\ttwice\n")
    writer("SET streams.writer = 'north'")
    assert "north" in refused(writer, "INSERT INTO held_order (instance_name) VALUES ('south')")
    writer("BEGIN; SAVEPOINT a")
    (lost,) = writer.append("x")
    writer("ROLLBACK TO a")
    refused(writer, "INSERT INTO held_order (stream_id) VALUES (%s)", lost)
    writer("ROLLBACK")
    assert reader.one("SELECT count(*) FROM held_order") == 1
    assert reader.locks() == 0


@pytest.mark.parametrize("name", ["two words", "line\nRDATA caches", "tab\t", "\x01", "n" * 201], ids=ascii)
@pytest.mark.parametrize("by_setting", [False, True])
def test_a_name_that_would_break_the_wire_or_the_index_of_positions_is_refused(
    writer: Session, name: str, *, by_setting: bool
):
    if by_setting:
        writer("SELECT set_config('streams.writer', %s, false)", name)
        assert "cannot be the name" in refused(writer, "INSERT INTO held_order (text) VALUES ('x')")
    else:
        assert "cannot be the name" in refused(writer, "INSERT INTO held_order (instance_name) VALUES (%s)", name)
    writer("SELECT set_config('streams.writer', %s, false)", "n" * 200)
    writer.append("x")


def test_ids_may_be_taken_first_if_the_stream_is_held_first(writer: Session, reader: Session):
    writer("BEGIN")
    assert writer.one("SELECT streams_hold('orders')") == 1
    ids = [row[0] for row in writer("SELECT nextval('orders_stream_seq') FROM generate_series(1, 3)")]
    assert reader.seen() == Seen(given=4, position=1, open={0: 1})
    for number in reversed(ids):
        writer("INSERT INTO held_order (stream_id, text) VALUES (%s, %s), (%s, 'again')", number, str(number), number)
    writer("COMMIT")
    assert sorted(texts_upto(reader, reader.seen().position)) == ["2", "3", "4", "again", "again", "again"]
    with pytest.raises(driver.DatabaseError, match="Nothing holds this stream"):
        writer("SELECT streams_hold('no such stream')")


def test_facts_do_not_change(writer: Session, reader: Session):
    writer.append("first")
    said = refused(writer, "UPDATE held_order SET text = 'x'")
    assert "orders" in said and "Append another fact" in said and "manage.py purge stream orders" in said
    refused(writer, "DELETE FROM held_order")
    refused(writer, "TRUNCATE held_order")
    refused(writer, "INSERT INTO held_order (number) VALUES (9); INSERT INTO held_order (number) VALUES (9) ON CONFLICT (number) "
                    "DO UPDATE SET text = 'x'")  # fmt: skip
    writer("UPDATE held_order SET text = 'x' WHERE false")  # as Django does for a key with SET_NULL
    assert texts_upto(reader, reader.seen().position) == ["first"]
    writer("BEGIN; SET LOCAL streams.maintenance = on; UPDATE held_order SET text = 'y'; DELETE FROM held_order; "
           "INSERT INTO held_order (stream_id, text) VALUES (2, 'restored'); COMMIT")  # fmt: skip
    assert texts_upto(reader, reader.seen().position) == ["restored"]
    refused(writer, "TRUNCATE held_order")


def test_rows_of_some_tables_are_more_than_facts(writer: Session):
    """Such as events: flags of a stored event change. Where it is in its stream does not."""
    writer("SELECT streams_hold_table('held_order', 'orders', 'orders_stream_seq', fixed => false)")
    writer.append("first", "second")
    writer("UPDATE held_order SET text = 'x'; DELETE FROM held_order WHERE stream_id = 2")
    refused(writer, "UPDATE held_order SET stream_id = stream_id + 1")
    refused(writer, "UPDATE held_order SET instance_name = 'other'")
    refused(writer, "TRUNCATE held_order")


@pytest.fixture
def role(session: Sessions) -> Iterator[str]:
    name = f"held_role_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name}")
    yield name
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_role_that_may_only_insert_can_append(role: str, session: Sessions, writer: Session, reader: Session):
    reader(
        f"GRANT INSERT (text), SELECT ON held_order TO {role}; "
        f"GRANT USAGE ON SEQUENCE orders_stream_seq, held_order_id_seq TO {role}"
    )
    writer(f"SET ROLE {role}")
    writer("BEGIN")
    assert writer.append("x") == [2]
    assert session().seen().position == 1
    writer("COMMIT")
    with pytest.raises(driver.DatabaseError, match="permission denied"):
        writer("INSERT INTO held_order (stream_id) VALUES (2)")
    with pytest.raises(driver.DatabaseError, match="permission denied"):
        writer("SELECT streams_hold('orders')")
    with pytest.raises(driver.DatabaseError, match="permission denied"):
        writer(
            "CREATE TEMP TABLE mine (id int); CREATE TRIGGER mine BEFORE INSERT ON mine EXECUTE FUNCTION streams_hold('1', 'x')"
        )


@pytest.mark.parametrize("table", ["held_order", "held_part", "held_part_b"])
def test_a_role_that_may_only_insert_chooses_no_ids(
    role: str, parts: Session, writer: Session, reader: Session, table: str
):
    """Anybody may set the setting. The last ID that there is would leave none for others."""
    parts("CREATE TABLE held_part_b PARTITION OF held_part FOR VALUES IN ('b'); ALTER TABLE held_order ADD kind text")
    parts(f"GRANT INSERT, SELECT ON held_order, held_part, held_part_b TO {role}")
    parts(f"GRANT USAGE ON SEQUENCE orders_stream_seq, held_part_seq, held_order_id_seq TO {role}")
    writer(f"SET ROLE {role}; SET streams.maintenance = on")
    last = f"INSERT INTO {table} (stream_id, instance_name, kind) VALUES (9223372036854775807, 'x', 'b')"
    refused(writer, last)
    parts(f"GRANT DELETE ON held_order, held_part, held_part_b TO {role}")
    writer(last)
    writer("RESET streams.maintenance")
    refused(writer, last)


def test_a_function_of_another_role_appends(role: str, writer: Session, reader: Session):
    reader(f"CREATE FUNCTION held_for_others() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS "
           f"$$ INSERT INTO held_order (text) VALUES ('x') RETURNING stream_id $$; "
           f"GRANT EXECUTE ON FUNCTION held_for_others() TO {role}")  # fmt: skip
    writer(f"SET ROLE {role}; BEGIN")
    assert writer.one("SELECT held_for_others()") == 2
    assert reader.seen().position == 1
    writer("COMMIT; RESET ROLE; DROP FUNCTION held_for_others()")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE held_order SET text = 'y'",
        "DELETE FROM held_order",
        "TRUNCATE held_order",
        "INSERT INTO held_order (stream_id, text) VALUES (1, 'below')",
    ],
)
def test_a_role_that_a_session_took_over_may_not_change_facts(
    role: str, session: Sessions, writer: Session, reader: Session, change: str
):
    """Such a role may not see the kind of its own session."""
    writer.append("x")
    reader(f"GRANT ALL ON held_order TO {role}; GRANT USAGE ON SEQUENCE orders_stream_seq, held_order_id_seq TO {role}")
    guard = reader.one(
        "SELECT tgfoid::regproc::text FROM pg_trigger WHERE tgrelid = 'held_order'::regclass AND tgname ~ 'guard'"
    )
    reader(f"GRANT SELECT ON SEQUENCE orders_stream_seq TO {role}; GRANT CREATE ON SCHEMA public TO {role}; "
           f"ALTER FUNCTION {guard}() OWNER TO {role}")  # fmt: skip
    try:
        writer(f"SET ROLE {role}")
        refused(writer, change)
    finally:
        reader(f"DO $$ BEGIN EXECUTE 'ALTER FUNCTION {guard}() OWNER TO ' || quote_ident(current_user); END $$")


COLUMN = "last_value"
#: What a role that may connect can make in its own session, and the statement that would use it.
OWN_OBJECTS = {
    "view that is no sequence": f"CREATE TEMP VIEW own ({COLUMN}) AS SELECT pg_temp.own(); SELECT streams_given('pg_temp.own')",
    "catalog": "CREATE TEMP VIEW pg_sequence AS SELECT pg_temp.own()::oid AS seqrelid; SELECT * FROM streams_look()",
    "type of a look": "CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.own() > 0); SELECT * FROM streams_look()",
    "type of a hold": "CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.own() > 0); "
    "INSERT INTO held_order (text) VALUES ('x')",
}


@pytest.mark.parametrize("own", OWN_OBJECTS)
def test_nothing_of_another_role_is_run_with_the_rights_of_the_owner(
    role: str, session: Sessions, reader: Session, own: str
):
    reader(f"GRANT INSERT (text), SELECT ON held_order TO {role}")
    stranger = session()
    stranger(f"SET ROLE {role}")
    stranger("""CREATE FUNCTION pg_temp.own() RETURNS bigint LANGUAGE plpgsql AS
             $$ BEGIN RAISE NOTICE 'run as %', current_user; RETURN 1; END $$""")
    with suppress(driver.DatabaseError):
        stranger(OWN_OBJECTS[own])
    assert [one for one in driver.notices(stranger.connection) if "run as" in one and role not in one] == []


def test_nobody_else_makes_a_table_one_of_the_streams(role: str, writer: Session, reader: Session):
    """The looker reads the tables whose triggers call the guard, and an update of the functions their arguments."""
    function, name = reader(
        "SELECT tgfoid::regproc::text, tgname FROM pg_trigger WHERE tgrelid = 'held_order'::regclass AND tgname ~ 'guard'"
    )[0]
    writer(f"SET ROLE {role}; CREATE TEMP VIEW own AS SELECT 5 AS id, 'x' AS writer")
    with pytest.raises(driver.DatabaseError, match="permission denied for function"):
        writer(
            f"CREATE TRIGGER {name} INSTEAD OF INSERT ON own FOR EACH ROW EXECUTE FUNCTION {function}('1', 's', '1', 'id', 'w')"
        )


def test_a_temporary_table_does_not_hide_holds(writer: Session, reader: Session):
    writer("BEGIN")
    writer.append("x")
    reader("CREATE TEMP TABLE pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE false")
    assert reader.seen() == Seen(given=2, position=1, open={0: 1})


def test_a_role_that_may_only_read_can_look(role: str, writer: Session, reader: Session):
    writer("BEGIN")
    writer.append("x")
    reader(f"GRANT SELECT ON streams_holders TO {role}; SET ROLE {role}")
    assert reader.seen() == Seen(given=2, position=1, open={0: 1})
    (holder,) = holders(reader.cursor, ["orders"])
    assert (holder.stream, holder.statement) == ("orders", "<insufficient privilege>")


@pytest.mark.parametrize(
    ("state", "next_one"),
    [
        ("SELECT setval('orders_stream_seq', 1, false)", 1),  # as in a dump
        ("ALTER SEQUENCE orders_stream_seq START 100; SELECT setval('orders_stream_seq', 5, false)", 5),
        ("ALTER SEQUENCE orders_stream_seq RESTART 2", 2),
    ],
)
def test_a_sequence_that_gave_out_nothing_may_go_on_below_its_start(
    writer: Session, reader: Session, state: str, next_one: int
):
    writer(state)
    before = reader.seen()
    assert before == Seen(given=next_one - 1, position=next_one - 1, open={})
    writer("BEGIN")
    writer.append("first")
    writer.append("second")
    assert reader.seen() == Seen(given=next_one + 1, position=next_one - 1, open={0: next_one - 1})
    assert holders(reader.cursor, ["orders"])[0].bound == next_one - 1
    writer("COMMIT")
    assert texts_upto(reader, reader.seen().position) == ["first", "second"]


# --- looks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_look_refuses_a_transaction_that_keeps_one_snapshot(reader: Session, isolation: str):
    reader(f"BEGIN ISOLATION LEVEL {isolation}")
    with pytest.raises(driver.DatabaseError, match="needs READ COMMITTED"):
        reader.seen()
    reader("ROLLBACK; BEGIN")
    assert reader.seen().position == 1
    reader("COMMIT")


def test_one_look_is_for_all_streams(session: Sessions, writer: Session, reader: Session):
    writer("""
        CREATE SEQUENCE held_pair START 2; CREATE TABLE held_left (stream_id bigint, instance_name text);
        CREATE TABLE held_right (LIKE held_left);
        SELECT streams_hold_table('held_left', 'left', 'held_pair'), streams_hold_table('held_right', 'right', 'held_pair')""")
    try:
        writer("BEGIN; INSERT INTO held_left DEFAULT VALUES")
        reader("INSERT INTO held_right DEFAULT VALUES")
        seen = look(reader.cursor)
        assert {name: seen[name] for name in ("orders", "left", "right")} == {
            "orders": Seen(1, 1, {}), "left": Seen(3, 1, {0: 1}), "right": Seen(3, 3, {})
        }  # fmt: skip
        assert list(look(reader.cursor, ["right"])) == ["right"]
        with pytest.raises(driver.DatabaseError, match="has holds: right, wrong"):
            look(reader.cursor, ["right", "wrong"])
        writer("COMMIT")
    finally:
        drop("held_left", "held_right", sequences=["held_pair"])


def test_a_look_does_not_wait_for_a_sequence_for_ever(writer: Session, reader: Session):
    writer("BEGIN; ALTER SEQUENCE orders_stream_seq NO CYCLE")
    with pytest.raises(driver.lock_timed_out):
        reader.seen()
    writer("ROLLBACK")
    assert reader.seen().position == 1


def test_it_is_told_who_holds_a_stream_back(session: Sessions, writer: Session, reader: Session):
    other = session()
    writer("BEGIN")
    writer.append("x")
    other("SET streams.writer = 'south'; BEGIN")
    other.append("y")
    first, second = holders(reader.cursor, ["orders"])
    assert (first.bound, first.pid, first.writer_class) == (1, writer.one("SELECT pg_backend_pid()"), 0)
    assert (first.state, first.application, first.prepared) == ("idle in transaction", "test", None)
    assert first.since is not None and "INSERT INTO held_order" in first.statement
    assert (second.bound, second.writer_class) == (2, class_of("south"))
    assert holders(reader.cursor, []) == []
    writer("COMMIT")
    other("COMMIT")
    assert holders(reader.cursor) == []


# --- other tables -------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(session: Sessions) -> Iterator[Session]:
    with sessions() as make:
        own = make()
        own("""
            CREATE SEQUENCE held_part_seq START 2;
            CREATE TABLE held_part (stream_id bigint, instance_name text, kind text) PARTITION BY LIST (kind);
            CREATE TABLE held_part_a PARTITION OF held_part FOR VALUES IN ('a');
            SELECT streams_hold_table('held_part', 'parts', 'held_part_seq')""")
        yield own
    drop("held_part", sequences=["held_part_seq"])


@pytest.mark.parametrize("table", ["held_part", "held_part_a"])
def test_a_partition_is_held_as_its_table(parts: Session, reader: Session, table: str):
    parts("BEGIN")
    assert parts.one(f"INSERT INTO {table} (kind) VALUES ('a') RETURNING stream_id") == 2
    assert reader.seen("parts") == Seen(given=2, position=1, open={0: 1})
    parts("COMMIT")
    refused(parts, f"INSERT INTO {table} (stream_id, kind) VALUES (2, 'a')")
    refused(parts, f"DELETE FROM {table}")
    refused(parts, f"TRUNCATE {table}")


def test_a_new_partition_refuses_what_nothing_holds(parts: Session, reader: Session):
    parts("CREATE TABLE held_part_b PARTITION OF held_part FOR VALUES IN ('b')")
    parts("INSERT INTO held_part (kind) VALUES ('b')")
    assert "streams_hold_table" in refused(
        parts, "INSERT INTO held_part_b VALUES (nextval('held_part_seq'), 'master', 'b')"
    )
    refused(parts, "UPDATE held_part_b SET kind = 'b'")
    parts("BEGIN; SET LOCAL streams.writer = 'north'")
    parts("INSERT INTO held_part (kind) VALUES ('a')")
    parts("SET LOCAL streams.writer = 'south'")  # held is only what north appends
    refused(parts, "INSERT INTO held_part_b VALUES (nextval('held_part_seq'), 'south', 'b')")
    parts("ROLLBACK")
    parts("SELECT streams_hold_table('held_part', 'parts', 'held_part_seq')")
    parts("BEGIN")
    assert parts.one("INSERT INTO held_part_b (kind) VALUES ('b') RETURNING stream_id") == 6
    assert reader.seen("parts") == Seen(given=6, position=5, open={0: 5})
    parts("COMMIT")


@pytest.mark.parametrize(
    "transaction", ["", "BEGIN; SET LOCAL streams.held{n} = 0", "SET streams.held{n}_transaction = '{x}'"]
)
def test_what_somebody_sets_does_not_open_a_new_partition(parts: Session, reader: Session, transaction: str):
    """The memory of holds is right only in the transaction that held."""
    parts("CREATE TABLE held_part_b PARTITION OF held_part FOR VALUES IN ('b')")
    number, own = parts("SELECT number, pg_current_xact_id()::text FROM streams_held WHERE stream = 'parts'")[0]
    parts(f"SET streams.held{number} = 0")
    if transaction:
        parts(transaction.format(n=number, x=own))
    said = refused(parts, "INSERT INTO held_part_b VALUES (nextval('held_part_seq'), 'master', 'b')")
    assert "nothing holds its stream" in said
    parts("ROLLBACK")
    parts("BEGIN; INSERT INTO held_part (kind) VALUES ('b')")
    assert reader.seen("parts").position < reader.seen("parts").given
    parts("COMMIT; BEGIN; SAVEPOINT a; INSERT INTO held_part (kind) VALUES ('b'); RELEASE a")
    parts("INSERT INTO held_part_b VALUES (nextval('held_part_seq'), 'master', 'b')")  # its table holds it
    parts("SAVEPOINT b; INSERT INTO held_part (kind) VALUES ('b'); ROLLBACK TO b")
    parts("INSERT INTO held_part_b VALUES (nextval('held_part_seq'), 'master', 'b'); COMMIT")


def test_partitions_of_an_older_version_get_the_new_guard(parts: Session):
    """Which reads two settings."""
    parts("CREATE TABLE held_part_b PARTITION OF held_part FOR VALUES IN ('b')")
    number = parts.one("SELECT number FROM streams_held WHERE stream = 'parts'")
    parts(
        f"CREATE OR REPLACE TRIGGER streams_guard_row_{number} AFTER INSERT ON held_part FOR EACH ROW "
        f"WHEN (NEW.stream_id <= coalesce(nullif(current_setting('streams.held{number}', true), '')::bigint, 2 ^ 40)) "
        "EXECUTE FUNCTION streams_guard_row()"
    )
    parts(f"SET streams.held{number} = 0")
    parts("INSERT INTO held_part_b VALUES (nextval('held_part_seq'), 'master', 'b')")
    parts(FUNCTIONS)
    assert {one.kind for one in weaknesses(parts.cursor)} <= {"strangers"}
    parts("CREATE TABLE held_part_c PARTITION OF held_part FOR VALUES IN ('c')")
    refused(parts, "INSERT INTO held_part_c VALUES (nextval('held_part_seq'), 'master', 'c')")
    refused(parts, "DELETE FROM held_part")


@pytest.mark.parametrize("writer", [None, "north"])
def test_a_fact_that_no_reader_would_find_is_refused(parts: Session, writer: str | None):
    """Its columns allow it."""
    if writer:
        parts("SELECT set_config('streams.writer', %s, false)", writer)
    for table in ("held_part", "held_part_a"):
        refused(parts, f"INSERT INTO {table} (stream_id, kind) VALUES (NULL, 'a')")
        assert "NULL cannot be" in refused(parts, f"INSERT INTO {table} (instance_name, kind) VALUES (NULL, 'a')")
    parts("CREATE TABLE held_part_b PARTITION OF held_part FOR VALUES IN ('b')")
    refused(parts, "INSERT INTO held_part_b VALUES (NULL, 'north', 'b')")


def test_one_table_has_a_forward_and_a_backward_stream(session: Sessions, writer: Session, reader: Session):
    writer("""
        CREATE SEQUENCE held_on START 2; CREATE SEQUENCE held_back START 2;
        CREATE TABLE held_both (ordering bigint, instance_name text);
        SELECT streams_hold_table('held_both', 'on', 'held_on', id => 'ordering', shared => true),
               streams_hold_table('held_both', 'back', 'held_back', id => 'ordering', backward => true, shared => true,
                                  defaults => false)""")
    try:
        writer(
            "BEGIN; INSERT INTO held_both DEFAULT VALUES; INSERT INTO held_both (ordering) VALUES (-nextval('held_back'))"
        )
        assert look(reader.cursor, ["on", "back"]) == {"on": Seen(2, 1, {0: 1}), "back": Seen(2, 1, {0: 1})}
        writer("COMMIT")
        assert look(reader.cursor, ["on", "back"]) == {"on": Seen(2, 2, {}), "back": Seen(2, 2, {})}
        refused(writer, "INSERT INTO held_both (ordering) VALUES (-2)")
        refused(writer, "INSERT INTO held_both (ordering) VALUES (2)")
        refused(writer, "INSERT INTO held_both (ordering) VALUES (-3)")
        refused(writer, "INSERT INTO held_both (ordering) VALUES (0)")  # of neither
        assert "without ID" in refused(writer, "INSERT INTO held_both (ordering) VALUES (NULL)")
        reader("SELECT streams_release_table('held_both', 'back')")
        writer("INSERT INTO held_both (ordering) VALUES (-2)")
        refused(writer, "DELETE FROM held_both")
    finally:
        drop("held_both", sequences=["held_on", "held_back"])


def test_a_backward_stream_goes_on_below_the_facts_and_positions_that_are_there(session: Sessions, writer: Session):
    class Back(models.Model):
        stream_id = models.BigIntegerField(db_index=True)
        instance_name = models.TextField()

        class Meta:
            app_label, apps, db_table = "held", Apps(), "held_backs"

        def __str__(self) -> str:
            return str(self.stream_id)

    def becomes_a_stream(before: str) -> int:
        with connection.schema_editor() as editor:
            editor.create_model(Back)
            editor.execute(before)
            editor.add_constraint(Back, StreamHolds(stream="backs", backward=True))
        try:
            return writer.one("INSERT INTO held_backs DEFAULT VALUES RETURNING stream_id")
        finally:
            drop("held_backs")

    assert becomes_a_stream("INSERT INTO held_backs (stream_id, instance_name) VALUES (-2, 'x'), (-7, 'x')") == -8
    stored = "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('backs', 'x', -2), ('backs', 'y', -9)"
    assert becomes_a_stream(stored) == -10


# --- Django -------------------------------------------------------------------------------------------------------


def test_django_appends_by_creating(session: Sessions, reader: Session):
    with transaction.atomic():
        one = Order.objects.create(text="one", instance_name="west")
        two, three = Order.objects.bulk_create(
            [Order(text="two", instance_name="west"), Order(text="three", instance_name="west")]
        )
        assert [one.stream_id, two.stream_id, three.stream_id] == [2, 3, 4]
        assert reader.seen() == Seen(given=4, position=1, open={0: 1})
        with pytest.raises(RuntimeError), transaction.atomic():
            Order.objects.create(text="never", instance_name="west")
            raise RuntimeError
    assert texts_upto(reader, reader.seen().position) == ["one", "two", "three"]


async def test_django_appends_from_a_coroutine(session: Sessions, reader: Session):
    order = await Order.objects.acreate(text="one", instance_name="west")
    assert order.stream_id == 2
    await sync_to_async(connections.close_all)()


def test_django_is_refused_with_a_way_out(session: Sessions):
    order = Order.objects.create(text="one", instance_name="west")
    order.text = "two"
    with pytest.raises(IntegrityError, match="Append another fact"):
        order.save()
    with pytest.raises(IntegrityError, match="readers may have read them"):
        Order.objects.all().delete()
    with pytest.raises(IntegrityError, match="This transaction may append"):
        Order.objects.create(stream_id=order.stream_id, instance_name="west")
    with pytest.raises(DatabaseError):
        Order.objects.bulk_create([Order(number=1, instance_name="a"), Order(number=1, instance_name="a")])
