"""What weakens the holds of a stream is found, with the way to mend it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.db import connection

from replsite.live_rows.reading import read_snapshot
from streams.db import driver
from streams.holds.installed_sql import DROP, FUNCTIONS
from streams.holds.weaknesses import Weakness, probe, weaknesses
from tests.support.held_tables import Session, Sessions, drop, held_orders, sessions

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session() -> Iterator[Sessions]:
    with held_orders(), sessions() as make:
        yield make


@pytest.fixture
def owner(session: Sessions) -> Session:
    return session()


def found(session: Session, stream: str = "orders") -> list[Weakness]:
    """What concerns the test's stream, or the functions."""
    return [one for one in weaknesses(session.cursor) if one.stream == stream and (stream or one.loses)]


def test_what_a_migration_makes_is_sound(owner: Session):
    assert found(owner) == found(owner, "") == []
    (strangers,) = weaknesses(owner.cursor)
    assert not strangers.loses
    assert "pg_advisory_lock(bigint)" in strangers.fix


BOTH_TRIGGERS = "DROP TRIGGER streams_hold_{n} ON held_order; DROP TRIGGER streams_guard_{n} ON held_order"
WEAKENED = {
    "ALTER SEQUENCE orders_stream_seq CACHE 20": "CACHE 20",
    "ALTER SEQUENCE orders_stream_seq INCREMENT -1 MINVALUE -10": "INCREMENT -1",
    "ALTER SEQUENCE orders_stream_seq CYCLE": "begins again",
    "ALTER SEQUENCE orders_stream_seq SET UNLOGGED": "unlogged",
    "ALTER TABLE held_order SET UNLOGGED": "table held_order is unlogged",
    "DROP TRIGGER streams_hold_{n} ON held_order": "no trigger streams_hold_{n}",
    BOTH_TRIGGERS: "takes IDs from orders_stream_seq, but belongs to no stream",
    "DROP TRIGGER streams_guard_{n} ON held_order": "no trigger streams_guard_{n}",
    "DROP TRIGGER streams_refuse ON held_order": "no trigger streams_refuse",
    "DROP TRIGGER streams_refuse_truncate ON held_order": "no trigger streams_refuse_truncate",
    "ALTER TABLE held_order DISABLE TRIGGER streams_hold_{n}": "streams_hold_{n} of table held_order is not ENABLE ALWAYS",
    "ALTER TABLE held_order ENABLE TRIGGER streams_hold_{n}": "streams_hold_{n} of table held_order is not ENABLE ALWAYS",
    "CREATE OR REPLACE TRIGGER streams_hold_{n} BEFORE INSERT ON held_order FOR EACH STATEMENT WHEN (false) "
    "EXECUTE FUNCTION streams_hold({n}, 'orders_stream_seq')": "streams_hold_{n} of table held_order does not hold it",
    "CREATE OR REPLACE TRIGGER streams_hold_{n} AFTER INSERT ON held_order FOR EACH STATEMENT "
    "EXECUTE FUNCTION streams_hold({n}, 'orders_stream_seq')": "streams_hold_{n} of table held_order does not hold it",
    "CREATE OR REPLACE TRIGGER streams_guard_{n} AFTER INSERT ON held_order FOR EACH STATEMENT "
    "EXECUTE FUNCTION streams_refuse({n}, 'orders_stream_seq')": "streams_guard_{n} of table held_order does not hold it",
    "CREATE SEQUENCE held_other; ALTER TABLE held_order ALTER stream_id SET DEFAULT nextval('held_other')": "takes IDs from held",
    "CREATE FUNCTION held_id() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 7::bigint'; "
    "ALTER TABLE held_order ALTER stream_id SET DEFAULT held_id()": "takes IDs from held_id(), and not from orders_stream_seq",
    "ALTER TABLE held_order ALTER stream_id SET DEFAULT 7": "takes IDs from 7, and not from orders_stream_seq",
    "ALTER TABLE held_order ALTER stream_id SET DEFAULT nextval('orders_stream_seq') * 2": "IDs from (nextval('orders_stream_",
    "ALTER TABLE held_order ALTER stream_id SET DEFAULT - nextval('orders_stream_seq')": "takes IDs from (- nextval(",
    "ALTER TABLE held_order ALTER stream_id DROP DEFAULT": "has no default",
    "CREATE TABLE held_child () INHERITS (held_order)": "table held_child has no trigger streams_hold_{n}; readers may have",
    "CREATE TABLE held_child (LIKE held_order INCLUDING ALL)": "held_child takes IDs from orders_stream_seq, but",
    "CREATE SEQUENCE held_other; UPDATE streams_held SET sequence = 'held_other' WHERE stream = 'orders'": "IDs from another",
    "UPDATE streams_held SET number = 4000 WHERE stream = 'orders'": "table held_order holds the number {n}, which is not its",
    "GRANT UPDATE ON SEQUENCE orders_stream_seq TO PUBLIC": "role PUBLIC may set sequence orders_stream_seq back",
}
#: Those of which an INSERT that readers may miss comes through, or IDs come again.
HARMLESS = ("role PUBLIC may set sequence orders_stream_seq back", "has no default")


@pytest.mark.parametrize("statement", WEAKENED)
def test_each_weakness_is_found_and_its_fix_mends_it(owner: Session, statement: str):
    number = str(owner.one("SELECT number FROM streams_held WHERE stream = 'orders'"))
    try:
        owner(statement.replace("{n}", number))
        left = found(owner)
        assert WEAKENED[statement].replace("{n}", number) in " / ".join(one.problem for one in left)
        assert any(one.loses for one in left) or WEAKENED[statement] in HARMLESS
        if "LIKE" not in statement and "streams_held SET" not in statement:
            for fix in {one.fix for one in left}:
                mend(owner, fix.removeprefix("Run again, with the same options: "))
            assert found(owner) == []
    finally:
        owner("DROP TABLE IF EXISTS held_child; DROP SEQUENCE IF EXISTS held_other CASCADE")
        owner("DROP FUNCTION IF EXISTS held_id CASCADE")


@pytest.mark.parametrize("identity", ["BY DEFAULT AS IDENTITY (START 1000000)", "ALWAYS AS IDENTITY"])
def test_an_identity_that_takes_no_ids_from_the_streams_sequence_is_found(owner: Session, identity: str):
    """Its IDs were not given out by the sequence, or lie below what was, so each fact is refused."""
    owner("ALTER TABLE held_order ALTER stream_id DROP DEFAULT, ALTER stream_id SET NOT NULL")
    owner(f"ALTER TABLE held_order ALTER stream_id ADD GENERATED {identity}")
    with pytest.raises(driver.DatabaseError, match="is refused"):
        owner.append("x")
    (weak,) = found(owner)
    assert weak.loses and "column stream_id of table held_order is an identity of its own" in weak.problem
    owner(weak.fix.partition(", with")[0])
    assert found(owner) == []
    assert owner.append("x") == [2]


@pytest.mark.parametrize("start", [1, 2, 1_000_000])
def test_a_stream_may_take_its_ids_from_the_identity_of_its_table(owner: Session, start: int):
    owner(f"""CREATE TABLE held_other (
            stream_id bigint GENERATED ALWAYS AS IDENTITY (START {start}), instance_name text NOT NULL DEFAULT 'master');
        SELECT streams_hold_table('held_other', 'others', 'held_other_stream_id_seq', defaults => false)""")
    try:
        assert owner.one("INSERT INTO held_other DEFAULT VALUES RETURNING stream_id") == start
        assert found(owner, "others") == []
    finally:
        drop("held_other")


def test_policies_that_hide_facts_from_the_role_are_found(owner: Session):
    """Its readers passed over the facts; ``check --database`` alone told so."""
    owner("CREATE ROLE held_tenant; GRANT SELECT ON held_order, streams_held TO held_tenant")
    try:
        owner("ALTER TABLE held_order ENABLE ROW LEVEL SECURITY; SET ROLE held_tenant")
        (policies,) = [one for one in found(owner) if one.kind == "policies"]
        assert policies.loses and "policies of table held_order hide facts from role held_tenant" in policies.problem
        owner(f"RESET ROLE; {policies.fix}; SET ROLE held_tenant")
        assert not [one for one in found(owner) if one.kind == "policies"]
    finally:
        owner("RESET ROLE; DROP OWNED BY held_tenant; DROP ROLE held_tenant")


def mend(owner: Session, fix: str) -> None:
    if fix.startswith("Declare StreamHolds"):
        fix = "SELECT streams_hold_table('held_order', 'orders', 'orders_stream_seq')"
    if "INCREMENT" in fix:
        fix = f"{fix} MINVALUE 1 START 2"
    owner(fix.partition(";")[0])


@pytest.mark.parametrize(
    "statement",
    ["DISABLE TRIGGER streams_guard_row_{n}", "ENABLE TRIGGER streams_guard_row_{n}", "DISABLE TRIGGER ALL"],
)
def test_the_guard_of_partitions_to_come_is_looked_after(owner: Session, statement: str):
    """Without it, a new partition takes facts that nothing holds."""
    owner("""
        CREATE SEQUENCE held_part_seq START 2;
        CREATE TABLE held_part (stream_id bigint, instance_name text, kind text) PARTITION BY LIST (kind);
        CREATE TABLE held_part_a PARTITION OF held_part FOR VALUES IN ('a') PARTITION BY LIST (stream_id);
        CREATE TABLE held_part_aa PARTITION OF held_part_a DEFAULT;
        SELECT streams_hold_table('held_part', 'parts', 'held_part_seq')""")
    try:
        number = str(owner.one("SELECT number FROM streams_held WHERE stream = 'parts'"))
        assert found(owner, "parts") == []
        owner(f"ALTER TABLE held_part {statement.replace('{n}', number)}")
        left = found(owner, "parts")
        for table in ("held_part", "held_part_a", "held_part_aa"):
            assert (
                f"trigger streams_guard_row_{number} of table {table} is not ENABLE ALWAYS, so it can be passed by"
                in {one.problem for one in left}
            )
        for one in left:
            assert one.loses
            owner(one.fix)
        assert found(owner, "parts") == []
        owner(f"DROP TRIGGER streams_guard_row_{number} ON held_part")
        left = found(owner, "parts")
        assert f"table held_part has no trigger streams_guard_row_{number}" in {one.problem for one in left}
        owner("SELECT streams_hold_table('held_part', 'parts', 'held_part_seq')")
        assert found(owner, "parts") == []
    finally:
        drop("held_part", sequences=["held_part_seq"])


FUNCTIONS_CHANGED = {
    "ALTER FUNCTION streams_look(text[]) STABLE": "not VOLATILE",
    "ALTER FUNCTION streams_look(text[]) IMMUTABLE": "not VOLATILE",
    "ALTER FUNCTION streams_look(text[]) STRICT": "STRICT",
    "ALTER FUNCTION streams_look(text[]) PARALLEL SAFE": "not PARALLEL UNSAFE",
    "ALTER FUNCTION streams_look(text[]) SET search_path = pg_catalog": "another search_path",
    "ALTER FUNCTION streams_given(regclass) CALLED ON NULL INPUT": "STRICT",
    "ALTER FUNCTION streams_hold() SECURITY INVOKER": "not SECURITY DEFINER",
    "ALTER FUNCTION streams_hold() RESET search_path": "another search_path",
    "CREATE OR REPLACE FUNCTION streams_hold() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
    "SET search_path = pg_catalog, pg_temp AS $$ BEGIN RETURN NULL; END $$": "another body",
    "DO $$ BEGIN EXECUTE (SELECT format('CREATE OR REPLACE FUNCTION %%s RETURNS trigger LANGUAGE plpgsql "
    "SECURITY DEFINER SET search_path = pg_catalog, pg_temp "
    "AS ''BEGIN RETURN NULL; END''', oid::regprocedure) FROM pg_proc WHERE proname ~ '^streams_guard_[0-9a-f]{8}$' "
    "LIMIT 1); END $$": "another body",
}


@pytest.mark.parametrize("statement", FUNCTIONS_CHANGED)
def test_a_function_of_another_version_is_found_and_replaced(owner: Session, statement: str):
    """Health names one that was altered. Another body may be that of a version to which the site is being updated."""
    try:
        owner(statement.replace("%%", "%"))
        (one,) = found(owner, "")
        assert FUNCTIONS_CHANGED[statement] in one.problem
        assert one.loses
        of_all = [p.verdict for p in read_snapshot().health.problems if p.subject == "Holds of all streams"]
        assert [one.problem.removeprefix("function ") in verdict.sentence for verdict in of_all] == (
            [] if one.kind == "function" else [True]
        )
    finally:
        owner(FUNCTIONS)
    assert found(owner, "") == []


@pytest.mark.parametrize("whose", ["DATABASE", "ROLE"])
def test_a_setting_for_all_sessions_is_found(owner: Session, whose: str):
    name = owner.one("SELECT quote_ident(CASE %s WHEN 'ROLE' THEN current_user ELSE current_database() END)", whose)
    owner(f"ALTER {whose} {name} SET streams.maintenance = on")
    try:
        (one,) = found(owner, "")
        assert "streams.maintenance=on" in one.problem
        assert one.loses
        owner(one.fix)
        assert found(owner, "") == []
    finally:
        owner(f"ALTER {whose} {name} RESET streams.maintenance")


def test_a_setting_of_the_server_is_found(owner: Session):
    """As of postgresql.conf, or of PGOPTIONS: no table of settings has it."""
    owner("SET streams.maintenance = on")
    try:
        (one,) = found(owner, "")
        assert "streams.maintenance=on" in one.problem and "postgresql.conf" in one.fix
        assert one.loses
    finally:
        owner("RESET streams.maintenance")
    assert found(owner, "") == []


def test_a_dropped_table_is_no_weakness(owner: Session):
    owner("DROP TABLE held_order")
    assert found(owner) == []
    assert "orders" not in owner("SELECT stream FROM streams_look()")


def test_the_owner_needs_rights(owner: Session):
    role = f"held_owner_{os.getpid()}"
    owner(f"CREATE ROLE {role}; GRANT CREATE ON SCHEMA public TO {role}; ALTER FUNCTION streams_hold() OWNER TO {role}")
    try:
        (one,) = found(owner)
        assert "may not read sequence orders_stream_seq" in one.problem
        owner(one.fix)
        assert found(owner) == []
    finally:
        owner(f"ALTER FUNCTION streams_hold() OWNER TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_lock_itself_is_tried(session: Sessions):
    assert probe(session().cursor, session().cursor) == []


def test_a_database_without_these_locks_fails_the_trial(session: Sessions):
    """A session that looks at another database stands for one whose locks others do not see."""
    elsewhere = session()
    elsewhere(
        "CREATE SCHEMA held_lies; CREATE VIEW held_lies.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE false"
    )
    elsewhere("SET search_path = held_lies, pg_catalog, public")
    try:
        said = [one.problem for one in probe(session().cursor, elsewhere.cursor)]
        assert said == [
            "a shared advisory lock is not seen by another session",
            "a shared advisory lock is not seen after it is taken again",
        ]
    finally:
        elsewhere("DROP SCHEMA held_lies CASCADE")


def test_everything_can_be_taken_back(session: Sessions, owner: Session):
    owner("SELECT streams_release_table('held_order', 'orders')")
    owner("INSERT INTO held_order (stream_id, instance_name) VALUES (2, 'x'); DELETE FROM held_order")
    drop("held_order")
    owner("CREATE SCHEMA held_again; SET search_path = held_again, public")
    try:
        owner(FUNCTIONS)
        assert owner.one("SELECT 'streams_held'::regclass::text") == "streams_held"
        owner(DROP)
        assert owner.one("SELECT count(*) FROM pg_proc WHERE pronamespace = 'held_again'::regnamespace") == 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA held_again CASCADE")
