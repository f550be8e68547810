"""Triggers, rules and policies that somebody put on a stream's table: no append is acknowledged whose rows are not there."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks
from django.db import DatabaseError, connection, transaction

from events.models import Event
from streams.errors import ReservationEnded
from tests.support.forging import reading_role
from tests.support.made_rooms import MadeRoom
from tests.support.persisted_rooms import persist_all
from tests.support.writing import append, fact, ids, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)

TABLE = "streams_cacheinvalidation"
BODIES = {
    "drops all": "RETURN NULL;",
    "drops some": "IF NEW.stream_id % 2 = 1 THEN RETURN NULL; END IF; RETURN NEW;",
    "raises": "IF NEW.stream_id % 2 = 1 THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW;",
    "another ID": "NEW.stream_id := NEW.stream_id + 100000; RETURN NEW;",
    "another sign": "NEW.stream_id := -NEW.stream_id; RETURN NEW;",
    "another writer": "NEW.instance_name := 'other'; RETURN NEW;",
    "another column": "NEW.cache_name := 'other'; RETURN NEW;",
}
RULES = {"rule": "DO INSTEAD NOTHING", "rule for some": "WHERE NEW.stream_id % 2 = 1 DO INSTEAD NOTHING"}


def in_transaction(count: int) -> list[int]:
    with transaction.atomic():
        return append(count)


def reserved(count: int) -> list[int]:
    with stream().reserve(count) as reservation:
        reservation.write(*[fact() for _ in range(count)])
        return list(reservation.ids)


WAYS = {"alone": append, "in a transaction": in_transaction, "reserved": reserved}


def executed(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture(params=[*BODIES, *RULES])
def kind(request, transactional_db):
    if request.param in RULES:
        executed(f"CREATE RULE of_others AS ON INSERT TO {TABLE} {RULES[request.param]}")
        yield request.param
        executed(f"DROP RULE of_others ON {TABLE}")
        return
    executed(f"CREATE FUNCTION of_others() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {BODIES[request.param]} END$$")
    executed(f"CREATE TRIGGER of_others BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION of_others()")
    yield request.param
    executed("DROP FUNCTION of_others CASCADE")


@pytest.mark.parametrize("way", WAYS)
def test_what_is_acknowledged_is_there_and_nothing_else(kind, way):
    refused = 0
    for count in (1, 1, 2, 3, 1500):
        before = set(ids())
        given: list[int] = []
        try:
            given = WAYS[way](count)
        except (DatabaseError, ReservationEnded):  # a rule also drops what holds the stream
            refused += 1
        assert sorted(set(ids()) - before) == sorted(given)
    assert refused == 0 if kind == "another column" else refused >= 3


def test_the_error_names_the_cause_and_later_facts_go_on():
    executed(f"CREATE FUNCTION of_others() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {BODIES['drops some']} END$$")
    executed(f"CREATE TRIGGER of_others BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION of_others()")
    try:
        with pytest.raises(DatabaseError, match="rows are stored as they were given: a trigger, a rule"):
            append(2)
    finally:
        executed("DROP FUNCTION of_others CASCADE")
    wait_for_linear(append()[0])


@pytest.mark.parametrize("count", [1, 5])
def test_events_of_a_room_that_are_dropped_are_an_error(count):
    made = MadeRoom()
    for _ in range(count):
        made.message()
    executed("CREATE FUNCTION of_others() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$")
    executed(
        "CREATE TRIGGER of_others BEFORE INSERT ON events_event FOR EACH ROW WHEN (NEW.type = 'm.room.message') "
        "EXECUTE FUNCTION of_others()"
    )
    try:
        with pytest.raises(DatabaseError, match="rows are stored as they were given"):
            persist_all(made.events, len(made.events))
    finally:
        executed("DROP FUNCTION of_others CASCADE")
    assert not Event.objects.exists()


def test_a_policy_that_hides_facts_is_found():
    with reading_role() as role:
        executed(
            f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON {TABLE} USING (stream_id % 2 = 0)"
        )
        executed(f"SET ROLE {role}")
        try:
            found = [one.msg for one in run_checks(databases=["default"]) if one.id == "streams.W019"]
        finally:
            executed(f"RESET ROLE; DROP POLICY few ON {TABLE}; ALTER TABLE {TABLE} DISABLE ROW LEVEL SECURITY")
    assert found == [f"Policies of the table {TABLE} hide rows from the role of the database 'default'."]


@pytest.mark.parametrize("definition", ["SELECT * FROM aside", "SELECT * FROM aside WHERE stream_id % 2 = 0"])
def test_a_view_in_the_place_of_a_table_is_found(definition):
    """A trigger INSTEAD OF INSERT returned rows that it had not stored, and the append was acknowledged."""

    def found() -> list[str]:
        return [one.msg for one in run_checks(databases=["default"]) if one.id == "streams.W020"]

    assert found() == []
    executed(f"ALTER TABLE {TABLE} RENAME TO aside; CREATE VIEW {TABLE} AS {definition}")
    try:
        assert found() == [f"{TABLE} in the database 'default' is a view, where a stream has its facts."]
    finally:
        executed(f"DROP VIEW {TABLE}; ALTER TABLE aside RENAME TO {TABLE}")


LATE = "AFTER INSERT ON {TABLE} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION of_others()"


@pytest.mark.parametrize("when", ["true", "NEW.stream_id % 2 = 1"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_deferred_trigger_refuses_at_the_commit_is_not_acknowledged(way, when):
    executed(
        "CREATE FUNCTION of_others() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
        f"IF {when} THEN RAISE EXCEPTION 'late'; END IF; RETURN NULL; END$$"
    )
    executed(f"CREATE CONSTRAINT TRIGGER of_others {LATE.format(TABLE=TABLE)}")
    refused = 0
    try:
        for count in (1, 1, 2, 3, 1500):
            before = set(ids())
            given: list[int] = []
            try:
                given = WAYS[way](count)
            except (DatabaseError, ReservationEnded):  # a rule also drops what holds the stream
                refused += 1
            assert sorted(set(ids()) - before) == sorted(given)
    finally:
        executed("DROP FUNCTION of_others CASCADE")
    assert refused >= 3
    wait_for_linear(append()[0])
