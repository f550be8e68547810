"""The snapshot reads what is really there: real appends, open transactions, readers that lag."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connection, transaction
from django.utils import timezone

from replsite.live_rows import lags
from replsite.live_rows.cells import as_json
from replsite.live_rows.reading import read_snapshot
from replsite.status.trends import History
from replsite.status.words import HealthWord
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.core.declaration import FactTable, StreamDeclaration
from streams.models import Reader, Sample, StoredCursor, StreamPosition
from tests.support.writing import held_open, ids, linear, other_writer, session, writer_waits_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def short_times(settings):
    """Signs of life four times a second, and short patience."""
    settings.REPLSITE_HEARTBEAT_SECONDS = 0.25
    settings.REPLSITE_BLOCKED_AFTER_SECONDS = 0.3
    settings.REPLSITE_STUCK_AFTER_SECONDS = 0.3


def append(count=1):
    facts = [CacheInvalidation(cache_name="test", keys=[str(number)]) for number in range(count)]
    return registry.get("caches").append(*facts)


def head(wait_until, ids):
    """Look, and wait until the appended facts are complete and stored."""
    linear()
    return wait_until(lambda: (caches := read_snapshot().stream("caches")).head >= ids[-1] and caches)


def a_reader(positions, **more):
    return Reader.objects.create(key="r", name="r", kind="follower", positions={"caches": positions}, **more)


def reader_status(history=None):
    return read_snapshot(history).readers[0].streams[0]


def test_streams_nobody_wrote_are_quiet_and_well():
    snapshot = read_snapshot()
    assert {stream.name for stream in snapshot.streams} == set(registry.names())
    assert all(stream.status.word == "idle" and stream.writers == () for stream in snapshot.streams)
    assert snapshot.health.word == HealthWord.WELL


def test_append_shows(wait_until):
    ids = append(3)
    caches = head(wait_until, ids)
    (writer,) = caches.writers
    assert (caches.linear_position, writer.position, writer.last_write_position) == (ids[-1],) * 3
    assert caches.sequence_value >= ids[-1]
    assert writer.status.word == "writing"
    assert writer.last_write_at is not None
    assert caches.last_fact_at == writer.last_write_at


def test_streams_that_somebody_writes_come_first(wait_until):
    head(wait_until, append())
    assert read_snapshot().streams[0].name == "caches"


def test_open_append_blocks_its_stream_and_is_named(wait_until):
    head(wait_until, append())
    with held_open():
        caches = wait_until(lambda: (found := read_snapshot().stream("caches")).blocked and found)
        health = read_snapshot().health
    (holder,), (writer,) = caches.holders, caches.writers
    assert (holder.bound, holder.state) == (caches.linear_position, "idle in transaction")
    assert holder.seconds > 0.3
    assert "INSERT INTO" in holder.statement
    assert caches.status == writer.status == holder.status
    assert (writer.status.word, writer.held_since) == ("blocked", holder.since)
    assert writer.held_by.startswith(f"database session {holder.pid} ")
    assert "manage.py streams abort caches" in writer.status.sentence
    assert health.word == HealthWord.WRONG
    assert health.sentence.startswith(f"Stream caches is blocked: Database session {holder.pid} ")
    assert [problem.subject for problem in health.problems] == ["Stream caches"], "its writers say the same"


def test_who_keeps_positions_from_being_stored_is_named(wait_until):
    head(wait_until, append())
    with other_writer("") as cursor:
        cursor.execute("BEGIN; UPDATE streams_streamposition SET updated_at = now() WHERE stream = 'caches'")
        snapshot = wait_until(lambda: (taken := read_snapshot()).stream("caches").blocked and taken)
    assert (
        "has locked stored positions and has not ended; its last statement: BEGIN; UPDATE" in snapshot.health.sentence
    )
    assert [problem.subject for problem in snapshot.health.problems] == ["Stream caches"]


STOPS = {
    "without its holds": (
        "UPDATE streams_held SET stream = 'another' WHERE stream = 'caches'",
        "UPDATE streams_held SET stream = 'caches' WHERE stream = 'another'",
    ),
    "rows that do not change": (
        "CREATE FUNCTION no_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        "CREATE TRIGGER no_row BEFORE UPDATE ON streams_streamposition FOR EACH ROW EXECUTE FUNCTION no_row()",
        "DROP FUNCTION no_row CASCADE",
    ),
    "a locked table": ("BEGIN; LOCK TABLE streams_streamposition IN SHARE MODE", "ROLLBACK"),
}


@pytest.mark.parametrize(("stop", "go_on"), STOPS.values(), ids=STOPS)
def test_facts_that_no_position_covers_are_told(wait_until, stop, go_on):
    """Followers got nothing more of the stream, or of all streams, and all was well."""
    history = History()

    def is_told():
        linear()  # if it can
        return read_snapshot(history).stream("caches").status.word == "not announced"

    (before,) = append()
    head(wait_until, [before])
    with session() as cursor:
        cursor.execute(stop)
        try:
            ids = append(2)
            with held_open():  # behind these facts, so it is not why they are not told
                wait_until(is_told)
            health = read_snapshot(history).health
        finally:
            cursor.execute(go_on)
    assert health.word == HealthWord.WRONG and "manage.py check_streams" in health.sentence
    assert f"There are facts up to {ids[-1]}, and no stored position has risen above {before} for" in health.sentence
    head(wait_until, ids)
    assert read_snapshot(history).health.word == HealthWord.WELL


def test_what_an_append_waits_for_is_named(wait_until):
    with writer_waits_for("another program"):
        holder = wait_until(
            lambda: (one := read_snapshot().stream("caches").blocked) and one.status.actions[1:] and one
        )
    assert "It waits for a lock of database session" in holder.status.sentence
    assert "another program" in holder.status.sentence


def test_an_append_is_of_the_writer_that_its_session_names(wait_until):
    with other_writer("one") as cursor, other_writer("two") as other:
        for own in (cursor, other):
            own.execute("INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('x')")
        linear()
        cursor.execute("BEGIN; INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('it''s private')")
        words = wait_until(lambda: (said := words_of_writers()).get("one") == "blocked" and said)
        (holder,) = read_snapshot().stream("caches").holders
        cursor.execute("ROLLBACK")
    assert words["two"] == "writing"
    assert holder.statement == "BEGIN; INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('…')"


def words_of_writers():
    return {writer.writer: writer.status.word for writer in read_snapshot().stream("caches").writers}


def test_one_transaction_that_holds_several_streams_is_one_problem(wait_until):
    with other_writer("") as cursor:
        cursor.execute("BEGIN; SELECT streams_hold('caches'), streams_hold('typing')")
        problems = wait_until(lambda: (found := read_snapshot().health.problems)[1:] and found)
    assert len({problem.subject for problem in problems}) == 2
    assert [problem.cause for problem in problems] == ["", problems[0].subject]


def test_reader_that_waits_for_a_held_stream_says_who_holds_it(wait_until, settings):
    settings.REPLSITE_HEARTBEAT_SECONDS = 60  # it is heard of once
    head(wait_until, append())
    with held_open() as held, other_writer("other") as cursor:
        cursor.execute("INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('later')")
        linear()
        a_reader({"other": held[0] - 1, "master": held[0] - 1})
        CacheInvalidation.objects.writable().update(received_at=timezone.now() - timedelta(seconds=60))
        view = wait_until(lambda: (one := reader_status()).status.word == "waiting" and one)
        snapshot = wait_until(lambda: (found := read_snapshot()).health.problems and found)
    (holder,) = snapshot.stream("caches").holders
    assert f"; database session {holder.pid} " in view.status.sentence
    assert [problem.cause for problem in snapshot.health.problems] == ["", "Stream caches"]


def test_facts_that_wait_for_a_writer_are_counted_behind_the_head(wait_until):
    head(wait_until, append())
    with held_open() as held, other_writer("other") as cursor:
        for _ in range(3):
            cursor.execute("INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('later')")
        linear()
        found = {w.writer: w for w in read_snapshot().stream("caches").writers}
        assert found["master"].position < held[0]
        assert (found["master"].behind_facts, found["other"].behind_facts) == (3, 0)
        assert found["master"].behind_seconds > 0
        assert read_snapshot().stream("caches").linear_position == found["master"].position


def test_lag_is_zero_when_equal_however_long_ago(wait_until):
    ids = append(3)
    head(wait_until, ids)
    a_reader({"master": ids[-1]})
    view = reader_status()
    assert (view.lag_facts, view.lag_seconds, view.lag_exact) == (0, 0.0, True)


def test_lag_is_the_age_of_the_oldest_unread_fact(wait_until):
    ids = append(5)
    head(wait_until, ids)
    for number, stream_id in enumerate(ids):
        CacheInvalidation.objects.writable().filter(stream_id=stream_id).update(
            received_at=timezone.now() - timedelta(seconds=500 - 100 * number)
        )
    a_reader({"master": ids[1]})
    view = reader_status()
    assert view.lag_facts == 3
    assert 299 < view.lag_seconds < 310


def test_rolled_back_ids_are_no_lag(wait_until):
    ids = append(1)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        append(50)
        raise ZeroDivisionError
    last = append(1)
    head(wait_until, last)
    a_reader({"master": ids[0]})
    assert reader_status().lag_facts == 1


def test_reader_below_the_window_is_estimated_with_the_exact_time(wait_until, monkeypatch):
    monkeypatch.setattr(lags, "WINDOW_FACTS", 5)
    ids = append(40)
    head(wait_until, ids)
    CacheInvalidation.objects.writable().filter(stream_id=ids[10]).update(
        received_at=timezone.now() - timedelta(seconds=900)
    )
    a_reader({"master": ids[9]})
    view = reader_status()
    assert (view.lag_facts, view.lag_exact) == (30, False)
    assert view.lag_seconds >= 900


def test_living_reader_that_does_not_move_is_stuck_once_it_was_watched(wait_until, settings):
    settings.REPLSITE_HEARTBEAT_SECONDS = 60  # it is heard of once
    ids = append(5)
    head(wait_until, ids)
    a_reader({"master": ids[0]})
    CacheInvalidation.objects.writable().update(received_at=timezone.now() - timedelta(seconds=60))
    history = History()
    assert reader_status(history).status.word == "catching up"
    wait_until(lambda: reader_status(history).status.word == "stuck")


def test_closed_connection_is_remembered_for_a_while():
    now = timezone.now()
    for key, closed in (("new", now), ("old", now - timedelta(hours=1))):
        Reader.objects.create(key=key, name=key, kind="connection", closed_at=closed, close_reason="slow")
    snapshot = read_snapshot()
    assert [(r.name, r.status.sentence) for r in snapshot.readers] == [("new", "Connection closed: slow.")]
    assert snapshot.health.word == HealthWord.WELL


@pytest.mark.parametrize("positions", [{}, [], "x", {"caches": 5}, {"caches": {"master": "x"}}, {"unknown": {"a": 1}}])
def test_positions_that_make_no_sense_harm_nobody(positions):
    Reader.objects.create(key="odd", name="odd", kind="connection", positions=positions)
    assert len(read_snapshot().readers) == 1


@pytest.mark.parametrize("table", ["streams_reader", "streams_storedcursor"])
@pytest.mark.parametrize(
    "stored", ["1e400", '{"caches":{"master":1e400}}', '{"master":1e5000}', "[" * 2_000 + "]" * 2_000]
)
def test_numbers_and_nesting_that_only_sql_stores_harm_nobody(table, stored):
    """A whole number may have 131,072 digits in jsonb; one ended the page, the metrics and every alarm."""
    Reader.objects.create(key="reader odd", name="odd", kind="reader")
    StoredCursor.objects.create(reader="odd", stream="caches", base=1, host="h", process_id=1)
    for column in ["positions", "queued", "rights"] if table == "streams_reader" else ["entries"]:
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {column} = %s::jsonb", [stored])
        assert len(read_snapshot().readers) == 1


def test_sequence_behind_is_wrong():
    StreamPosition.objects.create(stream="caches", instance_name="w", position=10**9, state="retired")
    snapshot = read_snapshot()
    assert snapshot.stream("caches").status.word == "sequence behind"
    assert snapshot.health.word == HealthWord.WRONG


def test_backward_stream_is_positive_everywhere():
    StreamPosition.objects.create(
        stream="backfill", instance_name="w", position=-40, last_write_position=-40, state="retired"
    )
    backfill = read_snapshot().stream("backfill")
    assert (backfill.head, backfill.linear_position, backfill.writers[0].last_write_position) == (40, 40, 40)


def test_snapshot_is_json(wait_until):
    head(wait_until, append())
    a_reader({"master": 1})
    plain = json.loads(json.dumps(as_json(read_snapshot())))
    (caches,) = [stream for stream in plain["streams"] if stream["name"] == "caches"]
    assert caches["writers"][0]["status"]["severity"] == "fine"
    assert plain["readers"][0]["streams"][0]["positions"] == {"master": 1}


# --- size: 20 writers x 12 streams x 50 readers -------------------------------------------------------------------------

STREAMS, WRITERS, READERS, FACTS = 12, 20, 50, 4_000


@pytest.fixture
def crowd(transactional_db, monkeypatch):
    """Twelve made-up streams with twenty busy writers each and fifty readers that are behind in all ways."""
    declarations = [
        StreamDeclaration(f"crowd_{n}", (FactTable(f"crowd_{n}", (), then_by=""),), f"crowd_{n}_seq")
        for n in range(STREAMS)
    ]
    names = [f"web-{n}" for n in range(WRITERS)]
    with connection.cursor() as cursor:
        for stream in declarations:
            cursor.execute(
                f"CREATE TABLE {stream.name} (id bigserial, stream_id bigint, instance_name text, received_at timestamptz);"
                f"CREATE SEQUENCE {stream.sequence}; SELECT setval('{stream.sequence}', {FACTS});"
                f"INSERT INTO {stream.name} (stream_id, instance_name, received_at) SELECT n, 'web-' || n %% {WRITERS}, "
                f"now() - ({FACTS} - n) * interval '10 ms' FROM generate_series(1, %s) n;"
                f"CREATE INDEX ON {stream.name} (stream_id); ANALYZE {stream.name}",
                [FACTS],
            )
    StreamPosition.objects.bulk_create(
        StreamPosition(stream=s.name, instance_name=w, position=FACTS - n, last_write_position=FACTS - n)
        for s in declarations for n, w in enumerate(names)
    )  # fmt: skip
    Reader.objects.bulk_create(
        Reader(key=str(r), name=f"reader-{r}", kind="connection",
               positions={s.name: {w: max(1, FACTS - r * (r % 3) * 40 - n) for n, w in enumerate(names)} for s in declarations})
        for r in range(READERS)
    )  # fmt: skip
    monkeypatch.setattr(
        registry, "all_streams", lambda: [SimpleNamespace(declaration=stream) for stream in declarations]
    )
    yield declarations
    with connection.cursor() as cursor:
        for stream in declarations:
            cursor.execute(f"DROP TABLE {stream.name}; DROP SEQUENCE {stream.sequence}")


def test_number_of_queries_does_not_depend_on_the_crowd(crowd, django_assert_max_num_queries):
    with django_assert_max_num_queries(32):
        snapshot = read_snapshot()
    assert (len(snapshot.streams), len(snapshot.readers)) == (STREAMS, READERS)
    assert sum(len(stream.writers) for stream in snapshot.streams) == STREAMS * WRITERS


def test_positions_of_readers_are_read_again_only_if_they_changed(crowd, django_assert_max_num_queries):
    history = History()
    before = {reader.name: reader for reader in read_snapshot(history).readers}
    with connection.cursor() as cursor:
        cursor.execute("UPDATE streams_reader SET heartbeat_at = clock_timestamp()")
    with django_assert_max_num_queries(21):
        again = {reader.name: reader for reader in read_snapshot(history).readers}
    moved, still = again["reader-7"].streams[0], again["reader-8"].streams[0]
    assert still.positions is before["reader-8"].streams[0].positions
    Reader.objects.filter(name="reader-7").update(positions={moved.stream: {"web-0": 5}})
    now = {reader.name: reader for reader in read_snapshot(history).readers}
    assert [view.positions for view in now["reader-7"].streams] == [{"web-0": 5}]
    assert now["reader-8"].streams[0].positions is still.positions


def test_lag_of_the_crowd_is_right_against_plain_sql(crowd):
    reader = next(r for r in read_snapshot().readers if r.name == "reader-7")
    view = reader.streams[0]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), extract(epoch from now() - min(received_at)) "
            f"FROM {view.stream}, jsonb_each_text(%s) AS have (writer, at)"
            " WHERE writer = instance_name AND stream_id > at::bigint"
            " AND stream_id <= (SELECT position FROM streams_streamposition p WHERE p.stream = %s AND p.instance_name = writer)",
            [json.dumps(view.positions), view.stream],
        )
        facts, seconds = cursor.fetchone()
    assert view.lag_exact
    assert view.lag_facts == facts > 0
    assert abs(view.lag_seconds - float(seconds)) < 5


def test_what_others_sampled_fills_the_small_pictures_at_once(crowd):
    now = timezone.now()
    for seconds, lag in ((200, 900), (100, 500)):
        at = now - timedelta(seconds=seconds)
        Sample.objects.create(step_seconds=15, stream="crowd_3", reader="reader-7", at=at, position=1, waiting=lag, seconds=1,
                              severity=0, word="x")  # fmt: skip
        Sample.objects.create(step_seconds=15, stream="crowd_3", reader="", at=at, position=10_000 - lag, waiting=0, seconds=0,
                              severity=0, word="x")  # fmt: skip
    snapshot = read_snapshot()
    reader = next(reader for reader in snapshot.readers if reader.name == "reader-7")
    recent = next(view.recent for view in reader.streams if view.stream == "crowd_3")
    assert [value for value in recent if value][:2] == [900, 500]
    assert max(filter(None, snapshot.stream("crowd_3").recent)) == 4


# --- what is seen over a while ------------------------------------------------------------------------------------------


def test_speeds_and_time_to_overflow_come_from_two_looks(settings):
    settings.REPLSITE_HEARTBEAT_SECONDS = 60  # it is heard of once
    settings.REPLSITE_SEND_BUFFER_LIMIT_BYTES = 10_000
    history, before = History(), timezone.now()
    Reader.objects.create(key="r", name="r", kind="connection", heartbeat_at=before)
    read_snapshot(history)
    history.moved._seen["r"][0] = (before.timestamp() - 10, (0, 0, 0))
    Reader.objects.update(bytes_in=100, bytes_out=5_000, buffer_bytes=5_000)
    snapshot = read_snapshot(history)
    (reader,) = snapshot.readers
    seconds = snapshot.as_of.timestamp() - (before.timestamp() - 10)
    assert reader.bytes_in_per_second == pytest.approx(100 / seconds)
    assert reader.bytes_out_per_second == pytest.approx(5_000 / seconds)
    assert reader.seconds_to_overflow == pytest.approx(seconds)


def test_reader_that_goes_back_is_told(wait_until, settings):
    settings.REPLSITE_HEARTBEAT_SECONDS = 60  # it is heard of once
    ids = append(5)
    head(wait_until, ids)
    a_reader({"master": ids[-1]})
    history = History()
    assert reader_status(history).status.word == "current"
    Reader.objects.update(positions={"caches": {"master": ids[0]}})
    assert reader_status(history).status.word == "went back"


def test_reader_that_has_to_be_there_and_is_not_is_never_seen(settings):
    settings.REPLSITE_HEARTBEAT_SECONDS = 60  # it is heard of once
    settings.REPLSITE_READERS = ["search", "r"]
    a_reader({"master": 1})
    snapshot = read_snapshot()
    assert [(r.name, r.status.word) for r in snapshot.readers if r.status.word == "never seen"] == [
        ("search", "never seen")
    ]
    assert snapshot.health.word == HealthWord.LOOK


# --- writers that have left -------------------------------------------------------------------------------------------


def retired_writer(name: str, seconds: float, position: int = 1) -> None:
    at = timezone.now() - timedelta(seconds=seconds)
    StreamPosition.objects.create(
        stream="caches", instance_name=name, position=position, state="retired", last_advance_at=at
    )


def test_retired_writers_are_listed_for_a_while_only():
    append()
    linear()
    retired_writer("append-1", 60)
    retired_writer("append-2", 4_000)
    caches = read_snapshot().stream("caches")
    assert {writer.writer for writer in caches.writers} == {"master", "append-1"}
    assert caches.retired_before == 1


def test_of_many_that_retired_at_once_the_last_are_listed():
    for number in range(30):
        retired_writer(f"append-{number}", number)
    caches = read_snapshot().stream("caches")
    assert {writer.writer for writer in caches.writers} == {f"append-{number}" for number in range(20)}
    assert caches.retired_before == 10


def test_positions_of_a_stream_that_is_no_more_are_no_stream():
    """Its model was deleted, or the stream was renamed. Its name was idle for ever."""
    StreamPosition.objects.create(stream="deleted", instance_name="master", position=7)
    with connection.cursor() as cursor, transaction.atomic():
        assert "deleted" not in [stream.name for stream in read_snapshot().streams]
        cursor.execute("INSERT INTO streams_held SELECT 4000, 'deleted', sequence, false FROM streams_held LIMIT 1")
        assert "deleted" in [stream.name for stream in read_snapshot().streams], "another version of the program has it"
        transaction.set_rollback(True)


def test_writers_that_are_not_listed_still_count():
    """Their facts are part of the stream: head, linear position and readers' lag know them."""
    append(3)
    linear()
    StreamPosition.objects.update(state="retired", last_advance_at=timezone.now() - timedelta(days=2))
    later = timezone.now() + timedelta(hours=1)
    Reader.objects.create(key="r", name="r", kind="follower", positions={"caches": {"master": 1}}, heartbeat_at=later)
    found = read_snapshot()
    caches = found.stream("caches")
    assert caches.writers == ()
    assert (caches.head, caches.linear_position) == (max(ids()), max(ids()))
    assert caches.last_fact_at is not None
    assert found.readers[0].lag_facts == 3


# --- writers that have to be there ------------------------------------------------------------------------------------


def expected(history=None):
    snapshot = read_snapshot(history)
    return {one.writer: (one.status.word, one.status.severity.name) for one in snapshot.stream("caches").expected}


def test_a_writer_that_has_to_be_there_is_missed(settings):
    settings.REPLSITE_HEARTBEAT_SECONDS = 60  # it is heard of once
    settings.REPLSITE_EXPECTED_WRITERS = {"caches": ["master", "web-{n}"]}
    append()
    linear()
    assert expected() == {"master": ("there", "FINE"), "web-{n}": ("missing", "WRONG")}
    health = read_snapshot().health
    assert health.word == HealthWord.WRONG
    assert health.sentence.startswith("Writer web-{n} of caches is missing")
    assert "Its last fact: never." in health.sentence
    long_ago = timezone.now() - timedelta(hours=2)
    StreamPosition.objects.create(
        stream="caches", instance_name="web-3", position=1, state="retired", last_fact_at=long_ago
    )
    assert expected()["web-{n}"] == ("missing", "WRONG")
    assert "Its last fact: 2 h ago." in read_snapshot().health.sentence
    with other_writer("web-3") as cursor:
        cursor.execute("INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('x')")
    linear()
    assert expected()["web-{n}"] == ("there", "FINE")


def test_one_that_writes_less_than_it_should_is_told_after_an_hour(settings):
    settings.REPLSITE_EXPECTED_WRITERS = {"caches": {"master": 10}}
    history = History()
    append(3)
    linear()
    for facts, word in ((0, "there"), (3, "too few facts"), (10, "there")):
        StreamPosition.objects.update(facts_written=1_000)
        history.hours._seen.clear()
        expected(history)
        StreamPosition.objects.update(facts_written=1_000 + facts)
        if facts:
            ((at, before),) = history.hours._seen["caches", "master"]
            history.hours._seen["caches", "master"][0] = (at - 3_600, before)
        settings.REPLSITE_HEARTBEAT_SECONDS = 1_000
        assert expected(history)["master"][0] == word, facts
