"""The streams of this torture, and the faults that can be planted in the functions of holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streams.holds.installed_sql import FUNCTIONS
from tests.support.positions_table import POSITIONS

__all__ = ["INSERTED", "PLANTS", "STREAMS", "WRITERS", "Plant", "Stream", "install"]

WRITERS = ("north", "south", "master")
"""Names of writers. Several processes and threads share them. An unnamed session writes as ``master``."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream and its tables. Facts of the last table are also read; ``start`` is what its sequence gave out before."""

    tables: tuple[str, ...]
    sequence: str
    start: int = 1
    sign: int = 1


STREAMS = {
    "plain": Stream(("t_plain",), "s_plain"),
    "w32": Stream(("t_w32",), "s_w32", start=(1 << 32) - 500),
    "w40": Stream(("t_w40",), "s_w40", start=(1 << 40) - 500),
    "back": Stream(("t_back",), "s_back", sign=-1),
    "parts": Stream(("t_parts",), "s_parts"),
    "left": Stream(("t_left",), "s_pair"),
    "right": Stream(("t_right",), "s_pair"),
    "two": Stream(("t_two_a", "t_two_b"), "s_two"),
    "fed": Stream(("t_fed",), "s_fed"),
}
#: Tables that take plain INSERTs, partitions among them.
INSERTED = ("t_plain", "t_w32", "t_w40", "t_back", "t_parts", "t_parts_a", "t_left", "t_right", "t_two_a")

_TABLES = """
CREATE TABLE {table} (stream_id bigint NOT NULL, instance_name text NOT NULL, mark text NOT NULL, kind text NOT NULL DEFAULT 'a')
    {more};
CREATE INDEX ON {table} (stream_id)
"""
_OTHERS = """
CREATE TABLE t_parts_a PARTITION OF t_parts FOR VALUES IN ('a');
CREATE TABLE t_parts_b PARTITION OF t_parts FOR VALUES IN ('b');
CREATE TABLE t_source (mark text);
CREATE FUNCTION feed() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO t_fed (mark) VALUES (NEW.mark); RETURN NULL; END $$;
CREATE TRIGGER feed AFTER INSERT ON t_source FOR EACH ROW EXECUTE FUNCTION feed();
CREATE CONSTRAINT TRIGGER feed_late AFTER INSERT ON t_source DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.mark LIKE '%-0') EXECUTE FUNCTION feed();
-- The second call in a transaction fails.
CREATE FUNCTION append_or_fail(mark text, fails boolean) RETURNS bigint LANGUAGE plpgsql AS
    $$ DECLARE n bigint; BEGIN INSERT INTO t_plain (mark) VALUES (mark) RETURNING stream_id INTO n;
       IF fails THEN RAISE 'meant to fail'; END IF; RETURN n; END $$;

CREATE TABLE cursors (reader text, stream text, writer text, position bigint NOT NULL, PRIMARY KEY (reader, stream, writer));
CREATE TABLE handled (reader text, stream text, mark text, PRIMARY KEY (reader, stream, mark));
CREATE TABLE intervals (after bigint, upto bigint, facts bigint);

-- Looks and reads inside of the server, where no round trip makes it slower.
CREATE FUNCTION look_and_count(after bigint, OUT upto bigint, OUT facts bigint) LANGUAGE plpgsql VOLATILE
    SET enable_seqscan = off AS $$
BEGIN
    SELECT l.position INTO upto FROM streams_look('{plain}') l;
    SELECT count(*) INTO facts FROM t_plain WHERE stream_id > after AND stream_id <= upto;
END $$;
CREATE PROCEDURE read_for(seconds float) LANGUAGE plpgsql AS $$
DECLARE
    stop timestamptz := clock_timestamp() + make_interval(secs => seconds);
    last bigint := (SELECT position FROM streams_look('{plain}'));
    found record;
BEGIN
    COMMIT;
    WHILE clock_timestamp() < stop LOOP
        SELECT * INTO found FROM look_and_count(last);
        IF found.upto > last THEN
            INSERT INTO intervals VALUES (last, found.upto, found.facts);
            last := found.upto;
        END IF;
        COMMIT;
    END LOOP;
END $$;
-- Takes IDs that nobody uses, as fast as it goes.
CREATE PROCEDURE draw_for(seconds float) LANGUAGE plpgsql AS $$
DECLARE
    stop timestamptz := clock_timestamp() + make_interval(secs => seconds);
BEGIN
    WHILE clock_timestamp() < stop LOOP
        PERFORM count(nextval('s_plain')) FROM generate_series(1, 500);
        COMMIT;
    END LOOP;
END $$;
-- Appends inside of the server, where sequences are logged ahead most often.
CREATE PROCEDURE write_for(seconds float, tag text) LANGUAGE plpgsql AS $$
DECLARE
    stop timestamptz := clock_timestamp() + make_interval(secs => seconds);
    n int := 0;
BEGIN
    WHILE clock_timestamp() < stop LOOP
        n := n + 1;
        IF random() < 0.6 THEN
            INSERT INTO t_plain (mark) SELECT tag || '-' || n || '-' || i FROM generate_series(1, 50) i;
        ELSE
            BEGIN
                INSERT INTO t_plain (mark) VALUES (tag || '-' || n || '-dead');
                IF random() < 0.5 THEN RAISE 'meant to fail'; END IF;
            EXCEPTION WHEN raise_exception THEN NULL;
            END;
            INSERT INTO t_plain (mark) VALUES (tag || '-' || n || '-b');
        END IF;
        IF random() < 0.1 THEN ROLLBACK; ELSE COMMIT; END IF;
    END LOOP;
END $$;
"""


def install(cursor: Any) -> None:
    """Make all tables, in a database that has none of them."""
    cursor.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
    cursor.execute(FUNCTIONS)
    for sequence in {stream.sequence for stream in STREAMS.values()}:
        cursor.execute(f"CREATE SEQUENCE {sequence} START 2")
    for stream in STREAMS.values():
        for table in stream.tables:
            more = "PARTITION BY LIST (kind)" if table == "t_parts" else ""
            cursor.execute(_TABLES.format(table=table, more=more))
    cursor.execute(_OTHERS)
    cursor.execute(POSITIONS)
    for name, stream in STREAMS.items():
        for table in stream.tables:
            cursor.execute(
                "SELECT streams_hold_table(%s, %s, %s, backward => %s)", [table, name, stream.sequence, stream.sign < 0]
            )
        if stream.start > 1:
            cursor.execute("SELECT setval(%s, %s)", [stream.sequence, stream.start])


# --- planted faults -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plant:
    """A fault: how it is planted, and what brings it out soonest."""

    plant: Callable[[Any], None]
    kinds: tuple[str, ...] = ("one",)
    """Kinds of transactions of the clients."""
    stress: bool = False
    """Whether the server writes by itself, too. A fault that needs this needs a sequence that is always drawn from as well."""
    is_rare: bool = False
    """Whether the moment that it needs may not come for minutes on a busy machine. Then it is for runs by hand."""
    check_finds: bool = False
    """Whether ``streams.holds.weaknesses`` finds it, too."""


def _changed(name: str, *changes: tuple[str, str]) -> Callable[[Any], None]:
    """Changes the text of a function: each first text into the second."""

    def plant(cursor: Any) -> None:
        cursor.execute("SELECT pg_get_functiondef(%s::regprocedure)", [name])
        (text,) = cursor.fetchone()
        for old, new in changes:
            assert old in text, text
            text = text.replace(old, new)
        cursor.execute(text)

    return plant


def _sql(statement: str) -> Callable[[Any], None]:
    return lambda cursor: cursor.execute(statement)


_HOLD, _LOOK = "streams_hold()", "streams_look(text[])"
_BOUND = "bound := least(bound, held);"
_LOOK_AND_COUNT = "look_and_count(bigint)"
_LAST_VALUE = "EXECUTE 'SELECT last_value - (NOT is_called)::int FROM ' || source INTO bound;"
PLANTS = {
    "select last_value": Plant(_changed(_HOLD, (_BOUND, f"{_LAST_VALUE} {_BOUND}")), stress=True, is_rare=True, check_finds=True),
    "no exception block": Plant(
        _changed(
            _HOLD,
            ("    BEGIN\n        WHILE", "        WHILE"),
            ("    EXCEPTION WHEN SQLSTATE 'ZZZZZ' THEN\n        RAISE;\n    END;\n", ""),
        ),
        ("failing_cursor",), check_finds=True,
    ),
    "filter by process": Plant(
        _changed(_LOOK, ("FROM pg_locks k\n", "FROM pg_locks k JOIN pg_stat_activity a ON a.pid = k.pid\n")),
        ("prepared", "one"), check_finds=True,
    ),
    "look and rows in one statement": Plant(
        _changed(
            _LOOK_AND_COUNT,
            ("    SELECT l.position INTO upto FROM streams_look('{plain}') l;\n", ""),
            (
                "SELECT count(*) INTO facts FROM t_plain WHERE stream_id > after AND stream_id <= upto;",
                "SELECT l.position, (SELECT count(*) FROM t_plain WHERE stream_id > after AND stream_id <= l.position) "
                "INTO upto, facts FROM streams_look('{plain}') l;",
            ),
        ),
    ),
    "a STABLE function": Plant(_sql(f"ALTER FUNCTION {_LOOK_AND_COUNT} STABLE")),
    "CACHE 2": Plant(_sql("ALTER SEQUENCE s_plain CACHE 2"), check_finds=True),
    "a flag instead of the bound": Plant(
        _changed(_HOLD, (_BOUND, f"IF held IS NOT NULL THEN RETURN NULL; END IF; {_BOUND}")),
        ("poisoned", "one"), check_finds=True,
    ),
    "an unconfirmed row": Plant(lambda cursor: None),  # of ``readers.Announced``, and in the crashes of a run without flushes
    "bound one too high": Plant(_changed(_HOLD, (_BOUND, f"bound := bound + 1; {_BOUND}")), check_finds=True),
    "no lock": Plant(_changed(_HOLD, ("WHILE NOT pg_try", "WHILE false AND NOT pg_try")), check_finds=True),
    "disabled trigger": Plant(_sql("ALTER TABLE t_plain DISABLE TRIGGER USER"), check_finds=True),
}  # fmt: skip
