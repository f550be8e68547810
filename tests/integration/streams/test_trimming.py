"""Trimming on a real server: never beyond a reader, never unnoticed, and the stream starts and goes on as before."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed, trim_mark
from streams.db.sequences import move_forward
from streams.errors import NotTrimmable, ResyncNeeded, TrimBusy
from streams.follow import Begin, Handler, Reader
from streams.maintenance import trim as trim_module
from streams.maintenance.trim import Keep, TrimRequest, plan_trim, reader_limit, trim
from streams.models import LowWaterMark, StoredCursor, StreamPosition
from streams.models import Reader as ReaderRow
from streams.reading.rows import existing_rows, rows_between
from streams.replication.server.broadcaster import Broadcaster
from streams.stream_object import Stream
from streams.testing import forget_writers
from tests.support.memory_client import MemoryClient
from tests.support.waiting import wait_until
from tests.support.wire_client import start_replication
from tests.support.writing import append, as_instance, ids, linear, session, stored, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


def trimmed(keep: Keep, **options: Any) -> int:
    """Rows deleted."""
    with session() as cursor:
        request = TrimRequest(stream(), keep, settle_seconds=0, **options)
        steps = list(trim(cursor, request, pause=lambda seconds: None))
    return steps[-1].rows if steps else 0


def written(count: int) -> list[int]:
    wanted = append(count)
    wait_for_linear(wanted[-1])
    return wanted


def mark() -> int:
    with session() as cursor:
        return trim_mark(cursor, "caches").position


def stored_cursor(base: int, **more: Any) -> StoredCursor:
    return StoredCursor.objects.create(reader="billing", stream="caches", base=base, **more)


def given_out(stream: Stream, upto: int) -> None:
    """The IDs up to there were given out, as they are where a writer's position is there."""
    with session() as cursor:
        move_forward(cursor, stream.declaration.sequence, max(upto, stream.sequence_value(cursor)))


def writer_at(name: str, position: int) -> None:
    """A writer that is there."""
    given_out(registry.get("caches"), position)
    StreamPosition.objects.create(stream="caches", instance_name=name, position=position)


def test_the_newest_facts_stay():
    wanted = written(10)
    assert trimmed(Keep(facts=4)) == 6
    assert ids() == wanted[6:]
    assert mark() == wanted[5]
    assert trimmed(Keep(facts=4)) == 0


def test_the_facts_that_stay_are_read_once_however_many_batches(monkeypatch):
    read = []
    find = trim_module._beyond_newest

    def counted(cursor, of_stream, facts, linear):
        read.append(facts)
        return find(cursor, of_stream, facts, linear)

    monkeypatch.setattr(trim_module, "BATCH_ROWS", 2)
    monkeypatch.setattr(trim_module, "_beyond_newest", counted)
    written(12)
    assert trimmed(Keep(facts=4)) == 8
    assert read == [4]


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_a_fact_goes_whole_or_stays_whole(monkeypatch, batch_rows):
    monkeypatch.setattr("streams.maintenance.trim.BATCH_ROWS", batch_rows)
    with connection.cursor() as cursor:
        for number in (2, 3, 3, 3, 4, 4, 5):
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) VALUES (%s, 'n', 'c')",
                [number],
            )
        cursor.execute("INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('caches', 'n', 5)")
    given_out(registry.get("caches"), 5)
    assert trimmed(Keep(facts=2)) == 4
    assert ids() == [4, 4, 5]


def test_old_facts_go_and_young_ones_stay():
    wanted = written(6)
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "UPDATE streams_cacheinvalidation SET received_at = now() - interval '2 days' WHERE stream_id <= %s",
            [wanted[3]],
        )
    assert trimmed(Keep(age=timedelta(days=1))) == 4
    assert ids() == wanted[4:]


def test_nothing_beyond_the_linear_position_goes(positions_by_hand):
    wanted = append(4)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('caches', 'slow', %s)",
            [wanted[1]],
        )
    assert trimmed(Keep(facts=0)) == 2
    assert ids() == wanted[2:]


def test_trimming_stops_at_the_slowest_stored_cursor_and_names_it():
    wanted = written(10)
    stored_cursor(wanted[2])
    assert trimmed(Keep(facts=1)) == 3
    with session() as cursor:
        slowest = plan_trim(cursor, TrimRequest(stream(), Keep(facts=1))).slowest
    assert slowest is not None
    assert (slowest.reader, slowest.position) == ("reader billing", wanted[2])


def test_trimming_stops_at_the_slowest_connection_or_query():
    wanted = written(5)
    ReaderRow.objects.create(key="k", name="n", kind="spark", positions={"caches": {"master": wanted[1]}})
    ReaderRow.objects.create(key="l", name="m", kind="connection", positions={"caches": {"master": wanted[3]}})
    assert trimmed(Keep(facts=0)) == 2


def test_readers_that_ended_do_not_hold_back():
    wanted = written(5)
    ReaderRow.objects.create(
        key="k", name="n", kind="connection", positions={"caches": {"master": 1}}, closed_at="2026-01-01T00:00Z"
    )
    assert trimmed(Keep(facts=0)) == len(wanted)


@pytest.mark.parametrize("kept_back", [True, False])
def test_a_reader_holds_back_until_it_was_not_seen_for_the_horizon(kept_back):
    written(5)
    stored_cursor(1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE streams_storedcursor SET seen_at = now() - interval '3 days'")
    assert trimmed(Keep(facts=0), horizon=timedelta(days=4 if kept_back else 2)) == (0 if kept_back else 5)


def test_a_reader_can_be_ignored_by_name():
    written(5)
    stored_cursor(1)
    assert trimmed(Keep(facts=0), ignored=("billing",)) == 5


def test_a_dry_run_counts_and_deletes_nothing():
    wanted = written(7)
    assert trimmed(Keep(facts=2), dry_run=True) == 5
    assert (ids(), mark()) == (wanted, 0)


@pytest.mark.parametrize("name", ["events", "backfill"])
def test_a_stream_whose_table_is_the_data_is_refused(name):
    with session() as cursor, pytest.raises(NotTrimmable, match="are the data itself"):
        plan_trim(cursor, TrimRequest(registry.get(name), Keep(facts=0)))


def test_two_at_once_are_refused():
    written(2)
    with session() as one, session() as other:
        first = trim(one, TrimRequest(stream(), Keep(facts=0), settle_seconds=0))
        next(first)
        with pytest.raises(TrimBusy):
            next(trim(other, TrimRequest(stream(), Keep(facts=0), settle_seconds=0)))
        first.close()


def test_facts_appended_meanwhile_stay():
    written(6)
    with session() as cursor:
        steps = trim(cursor, TrimRequest(stream(), Keep(facts=0), settle_seconds=0), pause=lambda seconds: None)
        next(steps)
        later = written(3)
        list(steps)
    assert ids() == later


# --- readers below the mark -------------------------------------------------------------------------------------------


def billing(**options: Any) -> Reader:
    return Reader("billing", [Handler("caches", "billing", lambda chunk: None, **options)])


def test_a_reader_below_the_mark_is_told_to_resync():
    wanted = written(5)
    stored_cursor(wanted[0])
    trimmed(Keep(facts=1), ignored=("billing",))
    with pytest.raises(ResyncNeeded, match=r"Reader 'billing' of stream 'caches' .*resync reader billing"):
        billing().catch_up()


def test_a_reader_at_the_mark_goes_on():
    wanted = written(5)
    stored_cursor(wanted[3])
    trimmed(Keep(facts=1))
    assert mark() == wanted[3]
    assert billing().catch_up() == 1


def test_a_reader_that_begins_at_the_oldest_begins_at_the_mark():
    written(5)
    trimmed(Keep(facts=2))
    assert billing(begin=Begin.OLDEST).catch_up() == 2


def test_an_old_cursor_for_an_idle_writer_is_no_false_alarm():
    with as_instance("idle"):
        first = append()[0]
        wait_until(lambda: "idle" in stored() and stored()["idle"].position >= first)
    wanted = written(5)
    trimmed(Keep(facts=1))
    with session() as cursor:
        check_not_trimmed(cursor, "caches", VectorToken(first), "idle")
        with pytest.raises(ResyncNeeded):
            check_not_trimmed(cursor, "caches", VectorToken(wanted[0]), "master")


@pytest.mark.parametrize(
    ("vector", "limit"),
    [
        ({"a": 10, "b": 20}, 20),  # has everything
        ({"a": 10, "b": 15}, 15),
        ({"a": 7, "b": 15}, 7),
        ({"b": 15}, 15),  # a's facts lie below the least that it has
        ({}, 0),
    ],
)
def test_a_reader_needs_what_lies_above_the_least_position_that_it_is_behind_of(vector, limit):
    class At:
        def __init__(self, position: int) -> None:
            self.position = position

    assert reader_limit(vector, {"a": At(10), "b": At(20)}, 20) == limit


# --- the stream goes on -----------------------------------------------------------------------------------------------


def test_start_up_and_check_streams_are_right_on_a_trimmed_table(run_manage):
    last = written(5)[-1]
    assert trimmed(Keep(facts=0)) == 5
    assert ids() == []
    forget_writers()  # as a process that was restarted
    assert append()[0] > last
    wait_for_linear(ids()[0])
    done = run_manage("check_streams", "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_writers_retired_and_an_empty_table_do_not_set_the_stream_back():
    last = written(3)[-1]
    StreamPosition.objects.update(state="retired")
    trimmed(Keep(facts=0))
    assert linear() >= last
    assert append()[0] > last


def test_the_mark_survives_the_loss_of_the_stored_positions():
    last = written(3)[-1]
    trimmed(Keep(facts=0))
    forget_writers()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM streams_streamposition")
        assert stream().table_maximum(cursor) == last


def test_purge_tells_what_holds_it_back(run_manage):
    wanted = written(6)
    stored_cursor(wanted[1])
    done = run_manage("purge", "stream", "caches", "--keep", "1")
    assert done.returncode == 0, done.stderr
    assert f"2 rows deleted; low-water mark 0 -> {wanted[1]}" in done.stdout
    assert f"held back by reader billing, which has read up to {wanted[1]}" in done.stdout


def test_purge_as_json_and_dry(run_manage):
    wanted = written(4)
    done = run_manage("purge", "stream", "caches", "--keep", "1", "--dry-run", "--json")
    found = json.loads(done.stdout)
    assert (found["rows_deleted"], found["would_reach"], found["mark"]) == (3, wanted[2], 0)
    assert CacheInvalidation.objects.count() == 4
    assert not LowWaterMark.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stream", "caches", "--keep", "soon"), "such as 30s, 15m"),
        (("stream", "caches"), "--keep"),
        (("stream", "nothing", "--keep", "1"), "There is no stream 'nothing'"),
        (("clouds", "--keep", "1"), "invalid choice: 'clouds'"),
    ],
)
def test_unusable_arguments_of_purge(run_manage, arguments, words):
    done = run_manage("purge", *arguments)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_purging_the_data_itself_is_refused_with_status_1(run_manage):
    done = run_manage("purge", "stream", "events", "--keep", "1")
    assert done.returncode == 1
    assert "cannot be trimmed" in done.stderr


def test_the_follower_of_the_command_line_below_the_mark_ends_by_name(run_manage, start_manage):
    wanted = written(5)
    trimmed(Keep(facts=1))
    port = start_replication(start_manage)
    for view in ("writer", "linear"):
        done = run_manage(
            "follow", f"tcp://127.0.0.1:{port}", "--streams", "caches", "--from", f"caches={wanted[0]}", "--view", view,
            "--until", f"caches={wanted[-1]}", "--timeout", "50",
        )  # fmt: skip
        assert (done.returncode, "were trimmed" in done.stderr, done.stdout) == (1, True, ""), done.stderr


def test_the_follower_of_the_command_line_at_the_mark_goes_on(run_manage, start_manage):
    wanted = written(5)
    trimmed(Keep(facts=2))
    port = start_replication(start_manage)
    done = run_manage(
        "follow", f"tcp://127.0.0.1:{port}", "--streams", "caches", "--from", f"caches={wanted[2]}",
        "--until", f"caches={wanted[-1]}", "--timeout", "50",
    )  # fmt: skip
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2), done.stderr


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_server_that_was_away_for_long_tells_its_clients_of_no_hole_as_of_nothing(is_behind):
    """Who is told that a writer has nothing up to a position asks for nothing, and never hears that facts are gone."""
    broadcaster = Broadcaster(stream_settings())
    wanted = written(1)
    broadcaster._announcer.start(broadcaster._reader.snapshot())
    peer = MemoryClient()
    broadcaster.join(peer)
    wanted += written(5)
    trimmed(Keep(facts=2 if is_behind else 5))
    broadcaster._reader._current_at = -math.inf
    broadcaster._send_round(broadcaster._reader.round())
    broadcaster._reader.close()
    lines = [line for line in peer.encode_lines() if b" caches " in line]
    if is_behind:
        assert lines == [b"POSITION caches master %d %d" % (wanted[-1], wanted[-1])]
    else:
        assert [line.split()[:4] for line in lines] == [[b"RDATA", b"caches", b"master", b"%d" % t] for t in wanted[1:]]


@pytest.mark.parametrize("writer", [None, "master"])
def test_reading_the_table_below_the_mark_is_an_error_and_not_an_empty_list(writer):
    wanted = written(5)
    trimmed(Keep(facts=2))
    declaration = stream().declaration
    with connection.cursor() as cursor:
        with pytest.raises(ResyncNeeded, match="were trimmed"):
            rows_between(cursor, declaration, writer, wanted[1], wanted[-1], 10)
        rows, _ = rows_between(cursor, declaration, writer, wanted[2], wanted[-1], 10)
        assert [row.token for row in rows] == wanted[3:]
        there, _ = existing_rows(cursor, declaration, writer and [writer], 0, wanted[-1], 10)
        assert [row.token for row in there] == wanted[3:]


def test_all_tables_of_a_union_are_trimmed_whole():
    union = Stream(replace(registry.get("events").declaration, trimmable=True))
    with session() as cursor:
        for number in range(2, 8):
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender,"
                " topological_ordering, origin_server_ts) VALUES (%s, 'n', %s, '!r', 'm', '@u', 1, 1)",
                [number if number % 2 else -number, f"${number}"],
            )
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO events_currentstatedelta (stream_ordering, instance_name, room_id, type, state_key)"
                " VALUES (%s, 'n', '!r', 'm', 'a'), (%s, 'n', '!r', 'm', 'b')",
                [number, number],
            )
        given_out(union, 7)
        StreamPosition.objects.create(stream="events", instance_name="n", position=7)
        (done,) = trim(cursor, TrimRequest(union, Keep(facts=3), settle_seconds=0), pause=lambda seconds: None)
        cursor.execute("SELECT stream_ordering FROM events_event ORDER BY 1")
        assert [row[0] for row in cursor.fetchall()] == [-6, -4, -2, 5, 7]  # backfilled events are another stream's
        cursor.execute("SELECT stream_ordering FROM events_currentstatedelta ORDER BY 1")
        assert [row[0] for row in cursor.fetchall()] == [5, 5, 6, 6, 7, 7]
    assert (done.rows, done.position, done.writers) == (7, 4, {"n": 4})


def test_a_backward_stream_is_trimmed_from_its_oldest_fact_on():
    backward = Stream(replace(registry.get("backfill").declaration, trimmable=True))
    with session() as cursor:
        for number in range(2, 6):
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender,"
                " topological_ordering, origin_server_ts) VALUES (%s, 'n', %s, '!r', 'm', '@u', 1, 1)",
                [-number, f"${number}"],
            )
        given_out(backward, 5)
        StreamPosition.objects.create(stream="backfill", instance_name="n", position=-5)
        list(trim(cursor, TrimRequest(backward, Keep(facts=1), settle_seconds=0), pause=lambda seconds: None))
        cursor.execute("SELECT stream_ordering FROM events_event")
        assert [row[0] for row in cursor.fetchall()] == [-5]
        assert trim_mark(cursor, "backfill").writers == {"n": 4}
