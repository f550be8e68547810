"""A sequence that somebody changed by hand is found by all that look at it, refused by writers, and mended where that can be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection

from replsite.live_rows.reading import read_snapshot
from replsite.status.words import HealthWord, Severity
from streams import registry
from streams.catalog.models import Presence
from streams.core.sequences import read_sequences
from streams.db import driver
from streams.errors import SequenceUnfit
from streams.holds.end import old_holders
from streams.homeserver.append import devices_changed
from streams.reading.possible_positions import given_out, possible_positions
from streams.replication.protocol.announcer import Announcer
from streams.replication.server.broadcast_reader import BroadcastReader
from streams.testing import forget_writers
from tests.integration.replsite.test_reading_sequences import Recorder
from tests.support.appending import MODULE
from tests.support.asked_process import asked_process
from tests.support.waiting import wait_until
from tests.support.wire_client import positioned
from tests.support.writing import (
    append,
    in_thread,
    linear,
    session,
    store_position,
    store_positions,
    stream,
    wait_for_linear,
)

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "streams_cacheinvalidation_seq"
RIGHT = (
    f"ALTER SEQUENCE {NAME} SET LOGGED; ALTER SEQUENCE {NAME} OWNED BY NONE; ALTER SEQUENCE {NAME} AS bigint INCREMENT BY 1 "
    "MINVALUE 1 NO MAXVALUE START WITH 2 CACHE 1 NO CYCLE"
)


def run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """The sequence as the migrations made it, where the test found it or further on."""
    yield
    forget_writers()
    run(
        f"DO $$ DECLARE last bigint := pg_sequence_last_value('{NAME}'); BEGIN "
        f"ALTER SEQUENCE {NAME} MINVALUE 1 NO MAXVALUE START WITH 2 RESTART WITH 1000; {RIGHT}; "
        f"PERFORM setval('{NAME}', greatest(last, 1000)); END $$"
    )


def checked(*arguments: str) -> tuple[dict[str, Any], str]:
    """What ``check_streams`` says of the stream, and its error."""
    out, error = StringIO(), ""
    try:
        call_command("check_streams", "--json", *arguments, stdout=out, stderr=StringIO())
    except CommandError as raised:
        error = str(raised)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    (found,) = [line for line in lines if line.get("stream") == "caches"]
    return found, error


def health() -> tuple[HealthWord, str, Severity]:
    """The site's state, with the sentence about the stream."""
    snapshot = read_snapshot()
    (problem,) = [one for one in snapshot.health.problems if one.subject == "Stream caches"] or [None]
    if problem is None:
        return snapshot.health.word, "", Severity.FINE
    assert snapshot.stream("caches").status == problem.verdict
    return snapshot.health.word, problem.verdict.sentence, problem.verdict.severity


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("CACHE 50", "CACHE 50"),
        ("INCREMENT BY 10", "INCREMENT BY 10"),
        ("INCREMENT BY -1", "INCREMENT BY -1"),
        ("CYCLE", "CYCLE"),
        ("MAXVALUE 100000000", "MAXVALUE 100000000"),
        ("MINVALUE -10", "MINVALUE -10"),
        ("MINVALUE -100 START WITH -50 RESTART", "START WITH -50"),
        ("AS integer", "AS integer"),
        ("SET UNLOGGED", "UNLOGGED"),
        ("OWNED BY streams_presence.stream_id", "owned by streams_presence"),
    ],
)
def test_a_changed_property_is_told_refused_and_mended(change: str, said: str):
    head = append()[0]
    wait_for_linear(head)
    forget_writers()
    run(f"ALTER SEQUENCE {NAME} {change}")
    found, error = checked()
    assert said in found["verdict"] and said.split(maxsplit=1)[0] in found["fix"] + found["verdict"]
    assert f"ALTER SEQUENCE {NAME}" in found["fix"] and "1 of" in error
    word, sentence, severity = health()
    assert (word, severity) == (HealthWord.WRONG, Severity.WRONG) and said in sentence
    with pytest.raises(SequenceUnfit, match=r"Stream caches.*facts would be lost.*check_streams --repair"):
        append()
    assert checked("--repair")[1] == ""
    assert checked()[0]["verdict"] == "ok"
    assert health()[1] == ""
    (after,) = append()
    assert after > head
    wait_for_linear(after)


def test_a_changed_start_is_told_and_mended_and_stops_nobody():
    run(f"ALTER SEQUENCE {NAME} START WITH 1")
    found, error = checked()
    assert "START WITH 1, not START WITH 2" in found["verdict"] and error
    assert health()[0] is HealthWord.LOOK
    append()
    checked("--repair")
    assert (checked()[0]["verdict"], health()[1]) == ("ok", "")


@pytest.mark.parametrize("change", ["START WITH 1", "SET UNLOGGED"])
def test_a_mended_sequence_gives_out_nothing_that_the_wal_does_not_have(change: str):
    """PostgreSQL writes it anew with its count of values that are logged ahead; after a crash these came again."""
    run(f"SELECT nextval('{NAME}'); ALTER SEQUENCE {NAME} {change}")
    checked("--repair")
    assert checked()[0]["verdict"] == "ok"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT log_cnt FROM {NAME}")
        assert cursor.fetchone() == (0,)


def test_two_writers_beside_a_cache_lose_no_fact(database_url: str):
    """Each has IDs of its own in its session; those that readers have passed are refused, and all after a restart."""
    with asked_process(MODULE, database_url, "north") as north, asked_process(MODULE, database_url, "south") as south:
        last = max(int(each.ask("append", "x")) for each in (north, south))
        read: list[int] = []
        done: list[bool] = []

        def listen() -> None:
            for one in registry.get("caches").listen(after=last, beat=0.2):
                if one is not None:
                    read.append(one.stream_id)
                elif done:
                    return

        reader = in_thread(listen)
        run(f"ALTER SEQUENCE {NAME} CACHE 50")
        said = [each.ask("append", "x") for _ in range(30) for each in (north, south)]
        done.append(True)
        reader.join()
        stored = [int(one) for one in said if one.isdecimal()]
        assert set(stored) <= set(read)
        assert all("or gave it a cache" in one or "is refused" in one for one in said if not one.isdecimal())
        with asked_process(MODULE, database_url, "west") as west:
            assert "SequenceUnfit" in west.ask("append", "x")
            checked("--repair")
            # What a session has kept is forgotten: the sequence is a new file.
            said = [each.ask("append", "x") for _ in range(3) for each in (north, west, south)]
        assert sorted(said, key=int) == said and int(said[0]) > max(stored)


@pytest.fixture
def other_schema() -> Iterator[None]:
    run("CREATE SCHEMA other_place")
    try:
        yield
    finally:
        run("DROP SCHEMA other_place CASCADE")


@pytest.mark.parametrize(
    "copies",
    [
        "CREATE SEQUENCE other_place.{name} START WITH 2",
        "CREATE TABLE other_place.streams_cacheinvalidation (LIKE public.streams_cacheinvalidation)",
        "CREATE TABLE other_place.streams_streamposition (LIKE public.streams_streamposition)",
        "CREATE SEQUENCE other_place.{name} START WITH 2;"
        "CREATE TABLE other_place.streams_cacheinvalidation (LIKE public.streams_cacheinvalidation)",
    ],
    ids=["sequence", "table", "positions", "both"],
)
def test_a_search_path_that_leads_elsewhere_is_told(copies: str, other_schema: None):
    """As ``ALTER ROLE … SET search_path`` has it in each new session."""
    run(copies.format(name=NAME))
    with session() as cursor:
        assert read_sequences(cursor, [stream().declaration])["caches"].faults == ()
        cursor.execute("SET search_path = other_place, public")
        found = read_sequences(cursor, [stream().declaration])["caches"]
    (fault,) = found.faults
    assert (
        "several schemas (other_place, public)" in fault.text
        and "correct search_path" in fault.remedy
        and fault.loses_facts
    )


def test_a_site_in_a_schema_of_its_own_before_another_one_is_right(other_schema: None):
    """Both are in the search path; all names lead to the first."""
    run(
        f"CREATE SEQUENCE other_place.{NAME} START WITH 2;"
        "CREATE TABLE other_place.streams_cacheinvalidation (LIKE public.streams_cacheinvalidation);"
        "CREATE TABLE other_place.streams_streamposition (LIKE public.streams_streamposition)"
    )
    with session() as cursor:
        cursor.execute("SET search_path = other_place, public")
        assert read_sequences(cursor, [stream().declaration])["caches"].faults == ()


def test_a_writer_with_such_a_search_path_is_refused(other_schema: None, database_url: str, run_manage: Any):
    run(f"CREATE SEQUENCE other_place.{NAME} START WITH 2")
    url = f"{database_url}?options=-csearch_path%3Dother_place,public"
    with asked_process(MODULE, url, "north") as north:
        assert "SequenceUnfit" in (said := north.ask("append", "x")) and "search_path" in said
    done = run_manage("check_streams", "--repair", env={"DATABASE_URL": url})
    assert done.returncode == 1
    assert "several schemas (other_place, public)" in done.stdout and "not mended" in done.stderr


def test_a_temporary_sequence_hides_the_real_one():
    with session() as cursor:
        cursor.execute(f"CREATE TEMPORARY SEQUENCE {NAME} START WITH 2")
        texts = [fault.text for fault in read_sequences(cursor, [stream().declaration])["caches"].faults]
    assert any("is a temporary one" in text for text in texts)


def test_a_missing_sequence_keeps_nobody_from_seeing_the_others():
    run(f"DROP SEQUENCE {NAME} CASCADE")
    try:
        found, error = checked("--repair")
        assert (found["sequence"], found["verdict"]) == (None, "sequence is missing")
        assert f"CREATE SEQUENCE {NAME} START WITH 2" in found["fix"] and "1 of" in error
        word, sentence, _ = health()
        assert word is HealthWord.WRONG and "is missing" in sentence
        with pytest.raises(DatabaseError, match="does not exist"):
            append()
    finally:
        run(f"CREATE SEQUENCE {NAME} START WITH 2")
        assert checked("--repair")[1] == ""


def test_a_sequence_that_was_renamed_gets_its_name_back():
    """The advice was to make another one, and then a repair that the triggers refused."""
    (head,) = append()
    run(f"ALTER SEQUENCE {NAME} RENAME TO elsewhere")
    found, error = checked()
    assert found["verdict"] == "sequence is called public.elsewhere"
    assert f"ALTER SEQUENCE public.elsewhere RENAME TO {NAME}" in found["fix"] and "--repair mends them" in error
    word, sentence, _ = health()
    assert word is HealthWord.WRONG and "is called public.elsewhere" in sentence
    assert checked("--repair") == (checked()[0], "")
    (token,) = append()
    assert token > head
    wait_for_linear(token)


def test_a_sequence_in_another_schema_is_told(other_schema: None):
    run(f"ALTER SEQUENCE {NAME} SET SCHEMA other_place")
    try:
        found, _ = checked("--repair")
        assert found["verdict"] == f"sequence is called other_place.{NAME}"
        assert f"ALTER SEQUENCE other_place.{NAME} SET SCHEMA" in found["fix"]
    finally:
        run(f"ALTER SEQUENCE other_place.{NAME} SET SCHEMA public")


def test_a_sequence_that_was_made_again_is_told_and_mended():
    """Looks go by the one that was dropped: no reader got a fact any more, and all was well."""
    (head,) = append()
    wait_for_linear(head)
    run(f"DROP SEQUENCE {NAME} CASCADE; CREATE SEQUENCE {NAME} START WITH 2; SELECT setval('{NAME}', {head})")
    (token,) = append()
    assert linear() == head
    assert "the holds of 1 streams" in checked()[1]
    word, sentence, severity = health()
    assert (word, severity) == (HealthWord.WRONG, Severity.WRONG)
    assert "holds another stream or sequence" in sentence and "check_streams" in sentence
    assert checked("--repair")[1] == ""
    wait_for_linear(token)
    assert health()[1] == ""
    with session() as cursor:
        cursor.execute("INSERT INTO streams_cacheinvalidation (instance_name, cache_name) VALUES ('north', 'x')")


@pytest.mark.parametrize("trigger", ["streams_hold", "streams_guard"])
def test_a_trigger_that_is_off_is_told_by_the_health_and_mended(trigger: str):
    with connection.cursor() as cursor:
        cursor.execute("SELECT number FROM streams_held WHERE stream = 'caches'")
        (number,) = cursor.fetchone()
    table = "ALTER TABLE streams_cacheinvalidation"
    run(f"{table} DISABLE TRIGGER {trigger}_{number}")
    try:
        word, sentence, _ = health()
        assert word is HealthWord.WRONG and f"rigger {trigger}_{number}" in sentence
        assert checked("--repair")[1] == ""
        assert health()[1] == ""
    finally:
        run(f"{table} ENABLE ALWAYS TRIGGER {trigger}_{number}")


def test_a_sequence_before_its_first_value_is_told_and_the_first_fact_reaches_everybody():
    """As in a schema that was put back without rows by a program whose sequences began at 1."""
    run(f"ALTER SEQUENCE {NAME} START WITH 1; SELECT setval('{NAME}', 1, false)")
    found, error = checked()
    assert found["verdict"].endswith("before its first value") and "1 of" in error
    word, sentence, severity = health()
    assert (word, severity) == (HealthWord.WRONG, Severity.WRONG) and "before its first value" in sentence
    checked("--repair")
    assert (checked()[0]["sequence"], checked()[0]["verdict"], health()[1]) == (1, "ok", "")
    assert append() == [2]
    wait_for_linear(2)


def test_rows_without_positions_are_told_by_the_check_and_the_health_alike():
    append(3)
    forget_writers()
    run(f"DELETE FROM streams_streamposition; SELECT setval('{NAME}', 1)")
    assert checked()[0]["verdict"] == "sequence behind table"
    assert "the highest ID in the tables" in health()[1]
    checked("--repair")
    assert (checked()[0]["verdict"], health()[1]) == ("ok", "")


def test_a_sequence_that_was_set_to_its_next_value_is_behind_nothing():
    """The habit of many: to set it to the greatest ID and one, not called."""
    head = append(3)[-1]
    wait_for_linear(head)
    forget_writers()
    run(f"SELECT setval('{NAME}', {head + 1}, false)")
    assert (checked()[0]["verdict"], health()[1]) == ("ok", "")
    with session() as cursor:
        (at,) = possible_positions(cursor, ["caches"])["caches"].values()
    assert at.position == head
    assert append() == [head + 1]
    wait_for_linear(head + 1)


@pytest.mark.parametrize(
    ("left", "severity", "word"),
    [
        (0, Severity.WRONG, HealthWord.WRONG),
        (2**31, Severity.WRONG, HealthWord.WRONG),
        (2**56, Severity.WARNING, HealthWord.LOOK),
    ],
)
def test_a_sequence_that_nears_its_end_is_told(left: int, severity: Severity, word: HealthWord):
    """As after a ``setval`` with a wrong number: nobody writes that many facts."""
    run(f"SELECT setval('{NAME}', {2**63 - 1 - left})")
    try:
        found, error = checked()
        assert f"has {left:,} IDs left" in found["verdict"] and "setval" in found["fix"] and "1 of" in error
        of_site, sentence, severity_there = health()
        assert (of_site, severity_there) == (word, severity) and f"has {left:,} IDs left" in sentence
        assert "has" in checked("--repair")[0]["verdict"], "no statement can mend it alone"
        if left:
            (token,) = append()  # nothing is lost
            wait_for_linear(token)
    finally:
        forget_writers()
        run(
            "SET LOCAL streams.maintenance = on; DELETE FROM streams_cacheinvalidation; DELETE FROM streams_streamposition"
        )
        run(f"SELECT setval('{NAME}', 999)")
    assert (checked()[0]["verdict"], health()[1]) == ("ok", "")


@pytest.mark.parametrize(
    ("takes", "gives"),
    [
        (f"SELECT setval('{NAME}', {2**63 - 1})", f"SELECT setval('{NAME}', 1000)"),
        (f"ALTER SEQUENCE {NAME} RENAME TO elsewhere", f"ALTER SEQUENCE elsewhere RENAME TO {NAME}"),
    ],
    ids=["exhausted", "missing"],
)
def test_a_sequence_that_gives_out_no_id_keeps_no_other_stream_back(takes: str, gives: str):
    """One query looks at all streams."""
    append()
    run(takes)
    try:
        with pytest.raises(DatabaseError):
            append()
        presence = registry.get("presence")
        (fact,) = presence.append(Presence(user_id="@u:here", state="online"))
        wait_until(lambda: linear("presence") >= fact, what="the position of the other stream")
    finally:
        forget_writers()
        run(gives)


def test_an_alter_sequence_that_stays_open_keeps_no_other_stream_from_followers(port: int):
    """The broadcaster reads all sequences each second, and waited for that one: a migration with a long next step."""
    presence = registry.get("presence")
    with positioned(port) as client, session() as cursor:
        (fact,) = append()
        client.read_until(f"RDATA caches master {fact} ")
        cursor.execute(f"BEGIN; ALTER SEQUENCE {NAME} CACHE 1")
        over = time.monotonic() + 2.5
        while time.monotonic() < over:
            (fact,) = presence.append(Presence(user_id="@u:here", state="online"))
            client.read_until(f"RDATA presence master {fact} ")
        cursor.execute("ROLLBACK")
        (fact,) = append()
        client.read_until(f"RDATA caches master {fact} ")


def test_a_sequence_that_is_locked_after_its_stream_moved_keeps_no_other_stream_from_followers(port: int):
    """A position is stored, and before the broadcaster compares it with the sequence, somebody begins to alter that."""
    presence = registry.get("presence")
    with positioned(port) as client, session() as altering, session() as storing:
        (fact,) = append()
        client.read_until(f"RDATA caches master {fact} ")
        altering.execute(f"BEGIN; ALTER SEQUENCE {NAME} CACHE 1; SELECT nextval('{NAME}')")
        storing.execute("UPDATE streams_streamposition SET position = position + 1 WHERE stream = 'caches'")
        over = time.monotonic() + 2.5
        while time.monotonic() < over:
            (other,) = presence.append(Presence(user_id="@u:here", state="online"))
            client.read_until(f"RDATA presence master {other} ")
        altering.execute("COMMIT")
        client.read_until(f"POSITION caches master {fact} {fact + 1}")


@pytest.mark.parametrize("committed", [True, False])
def test_followers_get_no_fact_of_a_locked_table_and_those_of_other_streams(port: int, committed: bool):
    """The broadcaster reads rows of one stream after another: VACUUM FULL, or a migration with a long next step."""
    presence = registry.get("presence")
    with positioned(port) as client, session() as cursor:
        (fact,) = append()
        client.read_until(f"RDATA caches master {fact} ")
        cursor.execute(
            f"BEGIN; SELECT nextval('{NAME}'); LOCK TABLE streams_cacheinvalidation IN ACCESS EXCLUSIVE MODE"
        )
        run("UPDATE streams_streamposition SET position = position + 1 WHERE stream = 'caches'")
        over = time.monotonic() + 2.5
        while time.monotonic() < over:
            (other,) = presence.append(Presence(user_id="@u:here", state="online"))
            client.read_until(f"RDATA presence master {other} ")
        cursor.execute("COMMIT" if committed else "ROLLBACK")
        (fact,) = append()
        client.read_until(f"RDATA caches master {fact} ")


def test_a_round_waits_once_however_many_tables_are_locked(monkeypatch):
    """As by a migration of many models: the waits added up, and followers of all other streams stood for as long."""
    names, waits = ["caches", "device_lists"], []
    reader = BroadcastReader(announcer := Announcer(names, "master"), stream().database, 10_000, "test")
    carry_out = reader._carry_out

    def counted(cursor: Any, step: Any) -> Any:
        try:
            return carry_out(cursor, step)
        except driver.lock_timed_out:
            waits.append(step.stream)
            raise

    monkeypatch.setattr(reader, "_carry_out", counted)
    try:
        announcer.start(reader.snapshot())
        append()
        devices_changed(["@u:here"])
        store_positions()
        with session() as cursor:
            tables = ", ".join(registry.get(name).declaration.tables[0].name for name in names)
            cursor.execute(f"BEGIN; LOCK TABLE {tables}")
            assert reader.round().facts == 0 and len(waits) == 1
        assert {name for name, count in reader.round().rows.items() if count} == {*names}
    finally:
        reader.close()


def test_a_wrong_position_is_held_also_while_somebody_alters_the_sequence():
    """A process that began meanwhile knew nothing of the stream, and showed it: its followers passed the next facts."""
    head = append(3)[-1]
    wait_for_linear(head)
    with session() as altering, session() as cursor:
        known = possible_positions(cursor, ["caches"])
        store_position(head + 1000)
        altering.execute(f"BEGIN; ALTER SEQUENCE {NAME} CACHE 1")
        found = possible_positions(cursor, ["caches"])["caches"]
        kept = possible_positions(cursor, ["caches"], known)["caches"]
        cursor.execute("SET lock_timeout = '5s'")
        assert given_out(cursor, ["caches"]) == {}
    assert {at.position for at in found.values()} == {head}
    assert {writer: at.position for writer, at in kept.items()} == {"master": head}


def test_a_sequence_that_somebody_is_altering_is_named_with_who_does():
    """Health waited for the lock, and said that the database did not answer."""
    append()
    with session() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = '60s'; BEGIN; ALTER SEQUENCE {NAME} CACHE 1")
        cursor.execute("SELECT pg_backend_pid()")
        words = f"is being altered by database session {cursor.fetchone()[0]} of role "
        wait_until(lambda: words in health()[1], what="the word of health")
        assert health()[0] == HealthWord.LOOK
        found, error = checked()
        assert words in found["verdict"] and "1 of" in error and "end that transaction" in found["fix"]
        assert words in checked("--repair")[0]["verdict"], "no statement can mend it"
        cursor.execute("ROLLBACK")
    assert (checked()[0]["verdict"], health()[1]) == ("ok", "")


def test_who_holds_a_stream_back_is_found_while_an_alter_sequence_waits_for_it():
    append()
    with session() as holding, session() as altering:
        holding.execute("SET idle_in_transaction_session_timeout = '60s'; BEGIN")
        holding.execute("INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('held')")
        holding.execute("SELECT pg_backend_pid()")
        (pid,) = holding.fetchone()
        waiting = in_thread(lambda: altering.execute(f"ALTER SEQUENCE {NAME} CACHE 1"))
        wait_until(lambda: f", which waits for session {pid}" in health()[1], what="the word of health")
        with session() as cursor:
            (found,) = wait_until(lambda: old_holders(cursor, "caches"), what="a holder that is no longer young")
        assert found.pid == pid
        holding.execute("ROLLBACK")
        waiting.join()
    assert health()[1] == ""


def test_a_missing_sequence_keeps_a_writer_that_starts_from_no_other_stream():
    """It enters all streams again that its name has written."""
    append()
    registry.get("presence").append(Presence(user_id="@u:here", state="online"))
    forget_writers()
    run(f"ALTER SEQUENCE {NAME} RENAME TO elsewhere")
    try:
        (fact,) = registry.get("presence").append(Presence(user_id="@u:here", state="online"))
        wait_until(lambda: linear("presence") >= fact, what="the position of the other stream")
        with pytest.raises(SequenceUnfit, match=r"is called public\.elsewhere"):
            append()
    finally:
        forget_writers()
        run(f"ALTER SEQUENCE elsewhere RENAME TO {NAME}")


def test_one_query_reads_the_sequences_of_all_streams():
    with session() as cursor:
        recorder = Recorder(cursor)
        found = read_sequences(recorder, [one.declaration for one in registry.all_streams()])
    assert len(recorder.statements) <= 2  # the second is for those that have not begun
    assert [name for name, one in found.items() if one.faults] == []
