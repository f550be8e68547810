"""Positions of looks in the table of positions: they rise, never pass what is open, and bring new writers in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from streams.core.positions import linear_position
from streams.db import driver
from streams.holds.installed_sql import class_of
from streams.holds.weaknesses import SET_BACK, Weakness, weaknesses
from streams.reading import position_store
from streams.reading.position_store import SESSION, PositionStore, Unconfirmed
from streams.reading.rows import StoredPosition, stored_positions
from tests.support.held_tables import Session, Sessions, drop, held_orders, sessions
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Storing:
    """A store with a session of its own."""

    def __init__(self, session: Session) -> None:
        self.session, self.store = session, PositionStore()
        session(SESSION)

    def __call__(self, *, everything: bool = False) -> list[str]:
        return self.store.store(self.session.cursor, time.monotonic(), everything=everything)

    def rows(self) -> dict[str, StoredPosition]:
        return stored_positions(self.session.cursor, ["orders"]).get("orders", {})

    def positions(self) -> dict[str, int]:
        return {writer: row.position for writer, row in self.rows().items()}

    def linear(self) -> int:
        return linear_position(self.rows().values())


@pytest.fixture
def session() -> Iterator[Sessions]:
    with held_orders(), sessions() as make:
        yield make


@pytest.fixture
def storing(session: Sessions) -> Storing:
    return Storing(session())


@pytest.fixture
def writer(session: Sessions) -> Session:
    return session()


def named(session: Sessions, name: str) -> Session:
    own = session()
    own(f"SET streams.writer = '{name}'")
    return own


def test_a_first_fact_brings_the_row_of_its_writer(storing: Storing, writer: Session):
    assert storing() == []
    assert storing.positions() == {}
    writer.append("a", "b")
    assert storing() == ["orders"]
    assert storing.positions() == {"master": 3}
    assert storing.rows()["master"].last_write_position == 3
    assert storing() == []
    writer.append("c")
    assert storing() == ["orders"]
    assert storing.positions() == {"master": 4}
    assert storing.rows()["master"].last_write_position == 4


def test_an_open_append_holds_its_writer_and_nobody_else(session: Sessions, storing: Storing):
    north, south = named(session, "north"), named(session, "south")
    north.append("n")
    south.append("s")
    storing()
    assert storing.positions() == {"north": 3, "south": 3}
    north("BEGIN")
    north.append("late")
    south.append("s")
    assert storing() == ["orders"]
    assert storing.positions() == {"north": 3, "south": 5}
    assert storing.linear() == 3
    north("COMMIT")
    storing()
    assert storing.positions() == {"north": 5, "south": 5}
    assert {writer: row.last_write_position for writer, row in storing.rows().items()} == {"north": 4, "south": 5}


def test_a_rolled_back_id_counts_as_complete(storing: Storing, writer: Session):
    writer.append("a")
    writer("BEGIN")
    writer.append("never")
    storing()
    assert storing.positions() == {"master": 2}
    writer("ROLLBACK")
    storing()
    assert storing.positions() == {"master": 3}
    assert storing.rows()["master"].last_write_position == 2


def test_a_writer_that_nobody_knows_holds_everybody_back(session: Sessions, storing: Storing):
    north, unknown = named(session, "north"), named(session, "newcomer")
    north.append("n")
    storing()
    unknown("BEGIN")
    unknown.append("its first")
    north.append("n")
    storing()
    assert storing.positions() == {"north": 2}
    unknown("COMMIT")
    storing()
    assert storing.positions() == {"north": 4, "newcomer": 4}


def test_a_newcomer_comes_in_the_transaction_in_which_the_others_pass_its_fact(session: Sessions, storing: Storing):
    """Otherwise a reader would have all known writers behind the newcomer's fact when its row appears."""
    north = named(session, "north")
    north.append("n")
    storing()
    named(session, "newcomer").append("its first")
    blocker = session()
    blocker("BEGIN; LOCK TABLE streams_streamposition IN SHARE ROW EXCLUSIVE MODE")
    with pytest.raises(driver.lock_timed_out):
        storing()
    blocker("COMMIT")
    assert storing.positions() == {"north": 2}
    assert storing() == ["orders"]
    assert storing.positions() == {"north": 3, "newcomer": 3}


def test_a_fact_of_a_retired_name_makes_it_a_writer_again(session: Sessions, storing: Storing):
    north, south = named(session, "north"), named(session, "south")
    south.append("s")
    north.append("n")
    storing()
    north("UPDATE streams_streamposition SET state = 'retired' WHERE instance_name = 'south'")
    north.append("n")
    storing()
    assert {writer: (row.position, row.state) for writer, row in storing.rows().items()} == {
        "north": (4, "active"),
        "south": (3, "retired"),
    }
    south("BEGIN")
    south.append("again")
    north.append("n")
    storing()
    assert storing.positions()["north"] == 4
    south("COMMIT")
    storing()
    assert {writer: (row.position, row.state) for writer, row in storing.rows().items()} == {
        "north": (6, "active"),
        "south": (6, "active"),
    }


def no_fact_for_long(session: Session, *names: str) -> None:
    session(
        "UPDATE streams_streamposition SET last_fact_at = now() - interval '2 hours' WHERE instance_name = ANY(%s)",
        list(names),
    )


def test_a_writer_that_is_behind_the_others_is_not_retired(session: Sessions, storing: Storing):
    """It has an append open since before its last fact was old. The linear position must not pass that."""
    north, south = named(session, "north"), named(session, "south")
    south.append("s")
    north.append("n")
    storing()
    south("BEGIN")
    south.append("works for hours")
    north.append("n")
    storing()
    assert storing.positions() == {"north": 5, "south": 3}
    no_fact_for_long(north, "north", "south")
    storing.store._retire_due = 0.0
    storing(everything=True)
    assert storing.linear() == 3
    south("COMMIT")
    storing()
    assert storing.positions()["south"] == 5


def test_positions_of_a_look_that_knew_a_writer_before_it_was_retired_are_not_stored(
    session: Sessions, storing: Storing
):
    """Two lookers. One sees an open append of south, and north beyond it. Meanwhile the other one retires south."""
    north, south = named(session, "north"), named(session, "south")
    south.append("s")
    north.append("n")
    storing()
    south("BEGIN")
    south.append("late")
    north.append("n")
    write = storing.store._write

    def retired_meanwhile(cursor: object, rises: object) -> object:
        session()("UPDATE streams_streamposition SET state = 'retired' WHERE instance_name = 'south'")
        return write(cursor, rises)

    storing.store._write = retired_meanwhile
    storing()
    assert storing.positions() == {"north": 3, "south": 3}
    storing.store._write = write
    storing()
    assert storing.linear() == 3
    south("COMMIT")
    storing()
    assert storing.positions() == {"north": 5, "south": 5}


def test_writers_without_a_fact_for_long_are_retired(session: Sessions, storing: Storing):
    north, south = named(session, "north"), named(session, "south")
    south.append("s")
    north.append("n")
    storing()
    no_fact_for_long(north, "south")
    storing.store._retire_due = 0.0
    storing(everything=True)
    assert {writer: row.state for writer, row in storing.rows().items()} == {"north": "active", "south": "retired"}


def test_a_writer_that_is_retired_while_its_append_is_open_is_found_again(session: Sessions, storing: Storing):
    """It is the only writer, so nobody is ahead of it. No later fact draws attention to this one."""
    north = named(session, "north")
    north.append("n")
    storing()
    north("BEGIN")
    (last,) = north.append("after an hour")
    storing()
    no_fact_for_long(session(), "north")
    storing.store._retire_due = 0.0
    storing(everything=True)
    assert storing.rows()["north"].state == "retired"
    north("COMMIT")
    storing()
    assert (storing.rows()["north"].state, storing.linear()) == ("active", last)


class CountingWaits:
    """A cursor that counts the statements that gave up to wait for a lock."""

    def __init__(self, cursor: Any) -> None:
        self._cursor, self.waits = cursor, 0

    def execute(self, *arguments: Any) -> None:
        try:
            self._cursor.execute(*arguments)
        except driver.lock_timed_out:
            self.waits += 1
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@pytest.mark.parametrize("locked", ["ALTER SEQUENCE other{}_seq CACHE 1", "LOCK TABLE held_other{}"])
def test_a_look_waits_once_however_many_streams_are_locked(
    session: Sessions, storing: Storing, writer: Session, locked: str
):
    """As by REASSIGN OWNED, or a migration of many models: the waits added up, and all other streams stood for seconds."""
    for number in range(3):
        storing.session(f"""
            CREATE SEQUENCE other{number}_seq START 2;
            CREATE TABLE held_other{number} (stream_id bigint PRIMARY KEY, instance_name text, text text);
            SELECT streams_hold_table('held_other{number}', 'other{number}', 'other{number}_seq')""")
    owner = session()
    try:
        storing()
        for number in range(3):
            writer(f"INSERT INTO held_other{number} (text) VALUES ('a')")
        owner("BEGIN; " + "; ".join(locked.format(number) for number in range(3)))
        cursor = storing.session.cursor = CountingWaits(storing.session.cursor)
        for text in ("a", "b"):
            writer.append(text)
            assert storing() == ["orders"] and cursor.waits == 1
        owner("COMMIT")
        wait_until(
            lambda: storing() is not None and {"other0", "other1", "other2"} <= stored_positions(writer.cursor).keys()
        )
    finally:
        owner.close()
        storing.session(";".join(f"""
            SELECT streams_release_table('held_other{number}', 'other{number}');
            DROP TABLE held_other{number}; DROP SEQUENCE other{number}_seq""" for number in range(3)))  # fmt: skip


@pytest.mark.parametrize(
    "locked",
    [
        "LOCK TABLE streams_streamposition IN SHARE UPDATE EXCLUSIVE MODE",
        "UPDATE streams_streamposition SET state = state",
    ],
    ids=["VACUUM", "UPDATE"],
)
def test_what_keeps_writers_from_being_retired_stops_no_look(session: Sessions, storing: Storing, locked: str):
    north, south = named(session, "north"), named(session, "south")
    north.append("n")
    storing()
    no_fact_for_long(north, "north")
    operator = session()
    operator(f"BEGIN; {locked}")
    south.append("s")
    storing.store._retire_due = 0.0
    storing(everything=True)
    assert storing.positions()["south"] == 3


def test_writers_of_one_class_hold_each_other_back_and_nothing_worse(session: Sessions, storing: Storing):
    north, twin = named(session, "w62"), named(session, "w68")
    assert class_of("w62") == class_of("w68")
    north.append("n")
    storing()
    north("BEGIN")
    north.append("held")
    twin.append("its first")
    storing()
    assert storing.positions() == {"w62": 2, "w68": 2}
    assert storing.rows()["w68"].last_write_position is None
    north("COMMIT")
    storing()
    assert storing.positions() == {"w62": 4, "w68": 4}
    assert storing.rows()["w68"].last_write_position == 4


def test_backward_streams_are_stored_with_their_sign(session: Sessions, storing: Storing):
    storing.session("""
        CREATE SEQUENCE back_seq START 2; CREATE TABLE held_back (stream_id bigint PRIMARY KEY, instance_name text, text text);
        SELECT streams_hold_table('held_back', 'back', 'back_seq', backward => true)""")
    try:
        storing()
        writer = session()
        writer("INSERT INTO held_back (text) VALUES ('a'), ('b')")
        assert storing() == ["back"]
        rows = writer(
            "SELECT instance_name, position, last_write_position FROM streams_streamposition WHERE stream = 'back'"
        )
        assert rows == [("master", -3, -3)]
        writer("INSERT INTO held_back (text) VALUES ('c')")
        storing()
        rows = writer(
            "SELECT instance_name, position, last_write_position FROM streams_streamposition WHERE stream = 'back'"
        )
        assert rows == [("master", -4, -4)]
    finally:
        storing.session(
            "SELECT streams_release_table('held_back', 'back'); DROP TABLE held_back; DROP SEQUENCE back_seq"
        )


def test_two_streams_of_one_sequence_stand_at_the_same_position(session: Sessions, storing: Storing):
    storing.session("""
        CREATE TABLE held_sister (stream_id bigint PRIMARY KEY, instance_name text, text text);
        SELECT streams_hold_table('held_sister', 'sister', 'orders_stream_seq')""")
    try:
        writer = session()
        writer.append("a")
        writer("INSERT INTO held_sister (text) VALUES ('b')")
        writer.append("c")
        assert storing() == ["orders", "sister"]
        rows = writer("SELECT stream, position, last_write_position FROM streams_streamposition ORDER BY 1")
        assert rows == [("orders", 4, 4), ("sister", 4, 3)]
        sister = session()
        sister("BEGIN; INSERT INTO held_sister (text) VALUES ('open')")
        writer.append("d")
        storing()
        assert dict(writer("SELECT stream, position FROM streams_streamposition")) == {"orders": 6, "sister": 4}
    finally:
        sister("ROLLBACK")
        storing.session("SELECT streams_release_table('held_sister', 'sister'); DROP TABLE held_sister")


def test_positions_never_go_back(session: Sessions, storing: Storing, writer: Session):
    writer.append("a", "b", "c")
    storing()
    writer("SELECT setval('orders_stream_seq', 2)")
    storing(everything=True)
    assert storing.positions() == {"master": 4}
    other = Storing(session())
    other()
    assert storing.positions() == {"master": 4}
    writer("SELECT setval('orders_stream_seq', 4)")
    writer.append("d")
    storing()
    assert storing.positions() == {"master": 5}


def set_back(session: Session) -> list[Weakness]:
    return [found for found in weaknesses(session.cursor) if found.kind == SET_BACK]


def test_a_sequence_that_was_set_back_is_moved_forward_again(storing: Storing, writer: Session):
    """Otherwise all facts are lost that get IDs in the gap below the position, which nobody notices afterwards."""
    writer.append("a")
    writer("SELECT nextval('orders_stream_seq') FROM generate_series(1, 10)")
    storing()
    assert storing.positions() == {"master": 12}
    writer("ALTER SEQUENCE orders_stream_seq RESTART WITH 5")
    assert writer.append("lost", "lost, too") == [5, 6]
    storing()
    assert writer.append("b") == [13]
    storing()
    assert storing.positions() == {"master": 13}
    (found,) = set_back(writer)
    assert "set back from 12, and moved there again when it was at 6; 2 facts got IDs" in found.problem
    assert (found.stream, found.loses) == ("orders", True)
    writer(found.statement)
    assert set_back(writer) == []


def test_a_sequence_that_was_set_back_before_anybody_appended_lost_nothing(storing: Storing, writer: Session):
    writer.append("a", "b", "c")
    storing()
    writer("SELECT setval('orders_stream_seq', 2)")
    storing()
    assert writer.append("d") == [5]
    (found,) = set_back(writer)
    assert "0 facts got IDs" in found.problem and not found.loses


def test_a_position_that_nobody_gave_out_moves_no_sequence(storing: Storing, writer: Session):
    writer.append("a")
    storing()
    writer("UPDATE streams_streamposition SET position = 1000")
    storing(everything=True)
    assert writer.append("b") == [3]
    storing(everything=True)
    assert writer.append("c") == [4] and set_back(writer) == []


def test_a_sequence_that_was_set_back_far_is_moved_when_no_append_is_open(
    session: Sessions, storing: Storing, writer: Session, monkeypatch
):
    monkeypatch.setattr(position_store, "BLOCKED_SECONDS", 0.0)
    writer("SELECT setval('orders_stream_seq', 5000000)")
    writer.append("a")
    storing()
    writer("SELECT setval('orders_stream_seq', 5)")
    late = session()
    late("BEGIN")
    late.append("late")
    storing()
    assert late.append("later") == [7]
    late("COMMIT")
    storing(everything=True)
    assert writer.append("b") == [5_000_002]
    (found,) = set_back(writer)
    assert "2 facts got IDs" in found.problem


def test_a_row_that_somebody_changes_is_passed_over_and_found_again(
    session: Sessions, storing: Storing, writer: Session
):
    writer.append("a")
    storing()
    holder = session()
    holder("BEGIN")
    holder("SELECT FROM streams_streamposition FOR UPDATE")
    writer.append("b")
    assert storing() == []
    holder("COMMIT")
    assert storing() == ["orders"]
    assert storing.positions() == {"master": 3}


@pytest.mark.parametrize("locked", ["ALTER SEQUENCE orders_stream_seq CACHE 1", "LOCK TABLE held_order"])
def test_a_locked_stream_stops_no_other(session: Sessions, storing: Storing, writer: Session, locked: str):
    storing.session("""
        CREATE SEQUENCE other_seq START 2; CREATE TABLE held_other (stream_id bigint PRIMARY KEY, instance_name text, text text);
        SELECT streams_hold_table('held_other', 'other', 'other_seq')""")
    try:
        writer.append("a")
        storing()
        writer.append("b")
        owner = session()
        owner(f"BEGIN; {locked}")
        writer("INSERT INTO held_other (text) VALUES ('a')")
        assert storing() == ["other"]
        writer("INSERT INTO held_other (text) VALUES ('b')")
        assert storing() == ["other"]
        owner("COMMIT")
        wait_until(storing)
        assert storing.positions() == {"master": 3}
    finally:
        storing.session(
            "SELECT streams_release_table('held_other', 'other'); DROP TABLE held_other; DROP SEQUENCE other_seq"
        )


@pytest.mark.parametrize(
    "locked",
    [
        "SELECT FROM streams_streamposition WHERE instance_name = 'north' FOR UPDATE",
        "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('orders', 'south', 1)",
    ],
)
def test_a_row_that_a_newcomer_needs_stops_no_other_stream(session: Sessions, storing: Storing, locked: str):
    """The row of a retired writer that somebody has locked, or one that somebody is about to insert."""
    storing.session("""
        CREATE SEQUENCE other_seq START 2; CREATE TABLE held_other (stream_id bigint PRIMARY KEY, instance_name text, text text);
        SELECT streams_hold_table('held_other', 'other', 'other_seq')""")
    try:
        north, south, other = named(session, "north"), named(session, "south"), session()
        north.append("a")
        storing()
        storing.session("UPDATE streams_streamposition SET state = 'retired'")
        holder = session()
        holder(f"BEGIN; {locked}")
        north.append("b")
        south.append("c")
        other("INSERT INTO held_other (text) VALUES ('a')")
        assert storing() == ["other"]
        other("INSERT INTO held_other (text) VALUES ('b')")
        assert storing() == ["other"]
        assert storing.linear() == 2
        holder("ROLLBACK")
        wait_until(storing)
        assert storing.positions() == {"north": 4, "south": 4}
    finally:
        storing.session(
            "SELECT streams_release_table('held_other', 'other'); DROP TABLE held_other; DROP SEQUENCE other_seq"
        )


def test_a_stream_that_the_looker_may_not_read_stops_no_other(session: Sessions, storing: Storing, writer: Session):
    """Its table belongs to another role than those of the site."""
    role = f"held_role_{os.getpid()}"
    storing.session(f"""
        CREATE SEQUENCE other_seq START 2; CREATE TABLE held_other (stream_id bigint PRIMARY KEY, instance_name text, text text);
        SELECT streams_hold_table('held_other', 'other', 'other_seq'); CREATE ROLE {role};
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}; GRANT INSERT, UPDATE ON streams_streamposition TO {role};
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role};
        REVOKE SELECT ON held_other FROM {role}; SET ROLE {role}""")
    try:
        writer("INSERT INTO held_other (text) VALUES ('x')")
        writer.append("a")
        assert "orders" in storing(everything=True)
        assert storing.positions() == {"master": 2}
        writer.append("b")
        assert storing() == ["orders"]
        storing.session("RESET ROLE")
        wait_until(lambda: "other" in storing(everything=True))
    finally:
        storing.session(f"""
            RESET ROLE; DROP TABLE held_other CASCADE; DROP SEQUENCE other_seq; DELETE FROM streams_held WHERE stream = 'other';
            DROP OWNED BY {role}; DROP ROLE {role}""")


@pytest.mark.parametrize("backward", [False, True])
def test_many_facts_are_passed_in_steps_each_of_which_is_a_right_position(
    session: Sessions, storing: Storing, monkeypatch: pytest.MonkeyPatch, *, backward: bool
):
    """A large table that becomes one of a stream. One statement over all of it would stop the other streams meanwhile."""
    monkeypatch.setattr(position_store, "MOST_FACTS", 4)
    owner = session()
    try:
        owner("CREATE SEQUENCE large_seq START 22")
        owner("CREATE TABLE held_large (stream_id bigint, instance_name text, text text)")
        sign = -1 if backward else 1
        owner(
            "INSERT INTO held_large SELECT %s * n, CASE WHEN n < 8 THEN 'north' WHEN n < 19 THEN 'south' ELSE 'east' END "
            "FROM generate_series(2, 21) AS n", sign)  # fmt: skip
        owner("SELECT streams_hold_table('held_large', 'large', 'large_seq', backward => %s)", backward)
        steps, new = [], session()
        while not steps or storing.store.is_behind:
            assert storing() == ["large"]
            rows = stored_positions(storing.session.cursor, ["large"])["large"]
            steps.append(linear_position(rows.values()))
            facts = [abs(one) for (one,) in owner("SELECT stream_id FROM held_large ORDER BY abs(stream_id)")]
            known = {
                writer
                for (writer,) in owner("SELECT instance_name FROM held_large WHERE abs(stream_id) <= %s", steps[-1])
            }
            assert known <= set(rows), "the first fact of a writer brings its row"
            if len(steps) == 2:
                new("INSERT INTO held_large (text) VALUES ('meanwhile')")
        assert steps == sorted(set(steps))
        assert len(steps) > 4
        assert steps[-1] == facts[-1] == 22
        written = dict(owner("SELECT instance_name, facts_written FROM streams_streamposition WHERE stream = 'large'"))
        assert written == {"north": 6, "south": 11, "east": 3, "master": 1}
        assert {abs(row.last_write_position or 0) for row in rows.values()} == {7, 18, 21, 22}
    finally:
        drop("held_large", sequences=["large_seq"])


def test_a_writer_that_lags_behind_many_facts_holds_no_other_back(
    session: Sessions, storing: Storing, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(position_store, "MOST_FACTS", 4)
    north, south = named(session, "north"), named(session, "south")
    north.append("n")
    south.append("s")
    storing()
    south("BEGIN")
    south.append("open")
    for _ in range(10):
        north.append("n")
        storing()
    assert storing.positions() == {"north": 14, "south": 3}
    south("COMMIT")
    while storing() and storing.store.is_behind:
        assert storing.positions()["north"] == 14
    assert storing.positions() == {"north": 14, "south": 14}


@pytest.mark.parametrize("name", ["NULL", "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) AS n)"])
def test_a_fact_of_old_whose_writer_can_have_no_row_stops_no_other_stream(
    session: Sessions, storing: Storing, writer: Session, name: str
):
    """The guard refuses such a writer. But the table had the fact before it became one of a stream's."""
    owner = session()
    owner(
        "CREATE SEQUENCE other_seq START 4; CREATE TABLE held_other (stream_id bigint, instance_name text, text text)"
    )
    try:
        owner(f"INSERT INTO held_other VALUES (2, 'north'), (3, {name})")
        owner("SELECT streams_hold_table('held_other', 'other', 'other_seq')")
        writer.append("a")
        assert "orders" in storing()
        assert storing.positions() == {"master": 2}
    finally:
        drop("held_other", sequences=["other_seq"])


@pytest.mark.parametrize("step", ["_KEEP_POSITIONS", "_ENTER"])
def test_a_process_that_stands_still_in_its_transaction_stops_no_other_for_long(
    session: Sessions, storing: Storing, monkeypatch: pytest.MonkeyPatch, step: str
):
    standing, north, south = Storing(session()), named(session, "north"), named(session, "south")
    north.append("n")
    storing()
    no_fact_for_long(north, "north")
    south.append("a newcomer")
    last = north.append("n")
    stands, goes_on = threading.Event(), threading.Event()

    class Cursor:
        """Stands still after one statement."""

        def __init__(self, cursor: object) -> None:
            self._cursor = cursor

        def __getattr__(self, name: str) -> object:
            return getattr(self._cursor, name)

        def execute(self, statement: str, values: object = None) -> None:
            self._cursor.execute(statement, values)
            if statement == getattr(position_store, step):
                stands.set()
                goes_on.wait()

    standing.session.cursor = Cursor(standing.session.cursor)

    def stand() -> None:
        with suppress(driver.DatabaseError):
            standing(everything=True)

    def others_store() -> bool:
        with suppress(driver.lock_timed_out):
            storing()
        return [storing.linear()] == last

    thread = threading.Thread(target=stand)
    thread.start()
    try:
        assert stands.wait(DEADLINE_SECONDS)
        wait_until(others_store)
    finally:
        goes_on.set()
        thread.join()


def test_a_table_that_becomes_one_of_a_stream_later_is_read(session: Sessions, storing: Storing, writer: Session):
    """The looker is older than the migration that makes the table."""
    writer.append("a")
    storing()
    writer(
        "CREATE TABLE held_more (stream_id bigint PRIMARY KEY, instance_name text, text text); "
        "SELECT streams_hold_table('held_more', 'orders', 'orders_stream_seq')"
    )
    try:
        last = named(session, "south").one("INSERT INTO held_more (text) VALUES ('x') RETURNING stream_id")
        storing()
        assert storing.positions() == {"master": last, "south": last}
    finally:
        drop("held_more")


def test_what_an_earlier_session_may_not_have_confirmed_is_written_again(
    session: Sessions, storing: Storing, writer: Session
):
    writer.append("a")
    storing()
    before = writer.one("SELECT xmin::text FROM streams_streamposition")
    assert storing(everything=True) == []
    assert Storing(session())() == ["orders"]
    assert writer.one("SELECT xmin::text FROM streams_streamposition") != before


def test_a_warning_at_the_commit_confirms_nothing(storing: Storing, writer: Session):
    writer("""
        CREATE FUNCTION warns() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'not replicated'; RETURN NEW; END $$;
        CREATE TRIGGER warns BEFORE UPDATE ON streams_streamposition FOR EACH ROW EXECUTE FUNCTION warns()""")
    try:
        writer.append("a")
        storing()
        writer.append("b")
        with pytest.raises(Unconfirmed, match="not replicated"):
            storing()
        with pytest.raises(Unconfirmed):
            storing()
    finally:
        writer("DROP FUNCTION warns CASCADE")
    assert storing() == ["orders"]
    assert storing.positions() == {"master": 3}


@pytest.mark.parametrize("most", [position_store.MOST_FACTS, 3])
def test_positions_never_pass_what_many_threads_append(
    session: Sessions, storing: Storing, monkeypatch: pytest.MonkeyPatch, most: int
):
    """Each reader of rows up to the stored position must have, in the end, exactly the facts of the table."""
    monkeypatch.setattr(position_store, "MOST_FACTS", most)
    stop = threading.Event()

    def write(name: str) -> None:
        own = named(session, name)
        number = 0
        while not stop.is_set():
            own("BEGIN")
            for _ in range(1 + number % 3):
                own.append(f"{name} {number}")
                number += 1
            own("ROLLBACK" if number % 5 == 0 else "COMMIT")

    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
    with running(threads, stop):
        reader, linear, seen = session(), 1, []
        vector: dict[str, int] = {}
        of_writers: dict[str, list[int]] = {}
        while len(seen) < 300:
            storing()
            upto = storing.linear()
            seen += [row[0] for row in reader("SELECT stream_id FROM held_order WHERE stream_id > %s AND stream_id <= %s "
                                              "ORDER BY 1", linear, upto)]  # fmt: skip
            base = min(vector.values(), default=0)
            for writer, position in storing.positions().items():
                after = vector.get(writer, base)
                assert position >= after
                of_writers.setdefault(writer, []).extend(
                    row[0]
                    for row in reader(
                        "SELECT stream_id FROM held_order WHERE instance_name = %s AND stream_id > %s AND "
                        "stream_id <= %s ORDER BY 1",
                        writer,
                        after,
                        position,
                    )
                )
                vector[writer] = position
            linear = upto
    storing()
    rows = reader("SELECT stream_id, instance_name FROM held_order WHERE stream_id <= %s ORDER BY 1", linear)
    assert seen == [number for number, _ in rows]
    for writer, position in vector.items():
        rows = reader(
            "SELECT stream_id FROM held_order WHERE instance_name = %s AND stream_id <= %s ORDER BY 1", writer, position
        )
        assert of_writers[writer] == [row[0] for row in rows]


@contextmanager
def running(threads: list[threading.Thread], stop: threading.Event) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
