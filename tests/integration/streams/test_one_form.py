"""A row has one form, whichever way it takes: through tables, the wire, HTTP, a handler, parked facts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import connection, transaction
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.notifier.feed import newest_rows
from pipeline.source import read_rows
from pipeline.source.data_source import register
from pipeline.source.offsets import pieces
from pipeline.source.read_rows import ReadParameters, read_piece
from pipeline.spark.session import spark_session
from replsite.dashboard.fact_search import search
from replsite.live_rows.reading import read_snapshot
from streams import registry
from streams.checks import check_declarations, check_session
from streams.core.declaration import ColumnKind
from streams.core.json_codec import decode_json, encode_json
from streams.core.recorded import recorded_declaration
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import UnusableFact
from streams.facts import Fact
from streams.follow import Begin, Chunk, Handler, OnFailure, Reader, parked_facts
from streams.follow import handlers as known_handlers
from streams.follow.dead_letters import retry_parked
from streams.follow.lag_histogram import age_sql
from streams.holds.maintenance import changing_facts
from streams.instances import row_of
from streams.maintenance.trim import Keep, TrimRequest, trim
from streams.models import RecordedFact
from streams.reading.positions_by_time import count_facts, position_before
from streams.reading.rows import rows_between
from streams.replication.protocol.announcer import Read
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.protocol.rdata_sql import encode_lines, lines_sql
from streams.replication.recording.recorder import Batch, Recorder
from streams.replication.server.broadcast_reader import read_lines
from streams.writing.name import writer_name
from streams.writing.newest_rows import compact_keys
from tests.support.effort import examples
from tests.support.every_kind import FACTS, NAME, PLAIN, SHOP, TABLE, declared, strategy, wire
from tests.support.waiting import wait_until
from tests.support.writing import session, stored

pytestmark = pytest.mark.django_db(transaction=True)
LINE_LIMIT = 16384
ROWS = [wire(given) for given in FACTS]


@pytest.fixture(scope="module")
def model(django_db_setup: None, django_db_blocker: Any) -> Iterator[type[Fact]]:
    """A stream with a field of every kind."""
    with declared(django_db_blocker) as (made, _):
        yield made


@pytest.fixture
def ids(model: type[Fact]) -> list[int]:
    """A fact of each row, and their writer's position behind them."""
    model._meta.get_field("shop").related_model.objects.create(code=SHOP)
    found = registry.get(NAME).append(*(model(**given) for given in FACTS))
    wait_until(lambda: any(at.position >= found[-1] for at in stored(NAME).values()))
    return found


def declaration() -> Any:
    return registry.get(NAME).declaration


def writer() -> str:
    return next(iter(stored(NAME)))


def of_the_wire(lines: list[bytes]) -> list[Any]:
    return [decode_json(line.split(b" ", 4)[4].decode()) for line in lines if line.startswith(b"RDATA")]


def test_rows_become_instances_that_equal_those_of_the_orm(ids, model):
    """What a row says is what Django loads, also where a field of the project has values of its own."""
    with session() as cursor:
        rows, _ = rows_between(cursor, declaration(), None, ids[0] - 1, ids[-1], 100)
    names = [field.attname for field in model._meta.concrete_fields if field.attname != "id"]
    loaded = list(model.objects.order_by("stream_id"))
    for row, one, values_given in zip(rows, loaded, FACTS, strict=True):
        made = model.stream.fact(row.row, token=row.token, writer=row.instance, received_at=one.received_at)
        assert {name: plain(getattr(made, name)) for name in names} == {
            name: plain(getattr(one, name)) for name in names
        }
        assert {name: plain(getattr(made, name)) for name in values_given} == {
            name: plain(value) for name, value in values_given.items()
        }
        assert made.pk is None and made.shop == one.shop


def test_several_facts_are_stored_as_each_alone(ids, model):
    """Several facts are sent as an array for each column, whose values the driver does not see one by one."""
    columns = ", ".join(
        f'"{column}"' for column in columns_of(model) if column not in {"id", "stream_id", "received_at"}
    )
    for values in FACTS:
        taken = [*model.stream.append(model(**values), model(**values)), *model.stream.append(**values)]
        with connection.cursor() as cursor:
            cursor.execute(f'SELECT DISTINCT ({columns})::text FROM "{TABLE}" WHERE stream_id = ANY(%s)', [taken])
            assert len(cursor.fetchall()) == 1


def columns_of(model: type[Fact]) -> list[str]:
    return [field.column for field in model._meta.concrete_fields]


def test_moments_are_naive_where_django_loads_them_so(ids, model):
    given = datetime(2026, 1, 2, 3, 4, 5, 6)
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Kathmandu"):
        (number,) = model.stream.append(moment=given, moments=[given, None])
        (loaded,) = model.stream.read(after=ids[-1]).facts
        row = row_of(model.stream, loaded)
        made = model.stream.fact(row, token=number)
    assert row["moment"] == "2026-01-01T21:19:05.000006Z"
    assert (made.moment, made.moments) == (loaded.moment, loaded.moments) == (given, [given, None])


def test_rows_of_instances(ids, model):
    """Browsers get instances in the form that followers get from PostgreSQL."""
    found = [row_of(model.stream, fact) for fact in model.stream.read().facts]
    assert json.loads(json.dumps(found)) == found == ROWS


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def values(row: Any) -> dict[str, Any]:
    """The Python values of a row. jsonb, which keeps dead letters, writes 1e300 as a whole number of 301 digits."""
    made = registry.get(NAME).fact(row, token=2)
    return {name: getattr(made, name) for name in FACTS[0]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thing", "'1e5000'"),
        ("thing", """'{"a": [1e5000], "b": "]}\\\\\\","}'"""),
        ("thing", "(repeat('[', 3000) || repeat(']', 3000))::jsonb"),
        ("moment", "'infinity'"),
        ("moment", "'294276-12-31'"),
        ("moment", "'0044-03-15 BC'"),
        ("day", "'-infinity'"),
        ("day", "'0044-03-15 BC'"),
        ("day", "'10000-01-01'"),
        ("hour", "'24:00'"),
        ("pause", "'178000000 years'"),
        ("total", "'NaN'"),
        ("moments", "ARRAY['infinity'::timestamptz]"),
        ("moments", "ARRAY['0044-03-15 BC'::timestamptz]"),
    ],
)
def test_what_only_sql_can_store_keeps_readers_from_nothing(ids, model, name, value):
    """Python has no such value, and one such fact stopped all readers."""
    with changing_facts(connection), connection.cursor() as cursor:
        cursor.execute(
            f'UPDATE "{TABLE}" SET "{model._meta.get_field(name).column}" = {value} WHERE stream_id = {ids[0]}'
        )
    with session() as cursor:
        rows, _ = rows_between(cursor, declaration(), None, ids[0] - 1, ids[-1], 100)
        lines, _ = read_lines(cursor, declaration(), Read(NAME, writer(), ids[0] - 1, ids[-1]), LINE_LIMIT)
    sent = [row.row for row in rows]
    assert sent == of_the_wire(lines.data.splitlines())
    assert [row | {name: None} for row in sent] == [row | {name: None} for row in ROWS]
    made = [model.stream.fact(row.row, token=row.token) for row in rows]
    read = model.stream.read().facts
    assert [fact.stream_id for fact in read] == ids
    for one, other in zip(read, made, strict=True):
        for field in ROWS[0].keys() - {"@version", name}:
            assert plain(getattr(one, field)) == plain(getattr(other, field))
    if value.startswith("'1e") or "BC" in value:
        assert getattr(made[0], name) is getattr(read[0], name) is None
    assert str(sent[0][name]).endswith(("BC", "BC']")) is ("BC" in value)


#: Fields whose text or numbers the database writes its own way: 1e23 in JSON, an address.
OWN_FORM = {"thing", "sets", "address"}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=examples(25),
    deadline=None,
)
@given(given=st.lists(strategy(), min_size=1, max_size=4))
def test_every_value_arrives_equal_on_every_way(model, given):
    """Through tables, lines that the database writes, lines that Python writes, dead letters and records."""
    model._meta.get_field("shop").related_model.objects.get_or_create(code=SHOP)
    found = model.stream.append(*(model(**one) for one in given))
    loaded = [
        {name: plain(getattr(one, name)) for name in given[0]}
        for one in model.objects.filter(stream_id__in=found).order_by("stream_id")
    ]
    for one, values_given in zip(loaded, given, strict=True):
        assert {name: one[name] for name in one if name not in OWN_FORM} == {
            name: value for name, value in values_given.items() if name not in OWN_FORM
        }
    step = Read(NAME, writer_name(), found[0] - 1, found[-1])
    compact = without_json(declaration())
    with session() as cursor:
        rows = [row.row for row in rows_between(cursor, declaration(), None, step.after, step.upto, 100)[0]]
        cursor.execute(
            lines_sql(compact),
            {"prefix": "RDATA e w ", "writer": step.writer, "after": step.after, "upto": step.upto, "limit": 100},
        )
        written, _ = encode_lines(step, cursor.fetchone(), 10**9)
        python, _ = read_lines(cursor, declaration(), step, 10**9)
        cursor.execute(
            "SELECT r::jsonb::text FROM unnest(%s::text[]) AS r", [[encode_json(row).decode() for row in rows]]
        )
        parked = [json.loads(row) for (row,) in cursor.fetchall()]
    records = [recorded_declaration("x/y").tables[0].row([encode_json(row).decode()]) for row in rows]
    for way in (rows, of_the_wire(python.data.splitlines()), parked, records):
        assert [values(row) for row in way] == loaded
    few = [column.key for column in compact.tables[0].columns]
    lines = of_the_wire(written.data.splitlines())
    assert [{name: row[name] for name in few} for row in rows] == [{name: row[name] for name in few} for row in lines]


def without_json(full: Any) -> Any:
    """The stream without its JSON columns, whose lines the database itself can write."""
    (table,) = full.tables
    columns = tuple(column for column in table.columns if column.kind is not ColumnKind.JSON)
    return replace(full, tables=(replace(table, columns=columns),))


def test_tables_read_on_a_connection_of_django(ids):
    with connection.cursor() as cursor:
        rows, _ = rows_between(cursor, declaration(), None, ids[0] - 1, ids[-1], 100)
    assert [row.row for row in rows] == ROWS


def test_tables_read_on_a_direct_connection(ids):
    with session() as cursor:
        rows, _ = rows_between(cursor, declaration(), None, ids[0] - 1, ids[-1], 100)
        newest = newest_rows(cursor, declaration(), {writer(): ids[-1]}, 100)
    assert [row.row for row in rows] == ROWS
    assert [row.row for row in sorted(newest.rows, key=lambda row: row.token)] == ROWS


def test_lines_on_the_wire(ids):
    with session() as cursor:
        lines, _ = read_lines(cursor, declaration(), Read(NAME, writer(), ids[0] - 1, ids[-1]), LINE_LIMIT)
    assert of_the_wire(lines.data.splitlines()) == ROWS


def test_catch_up_over_http(ids):
    path = f"/_synapse/replication/get_repl_stream_updates/{NAME}/one-form-{ids[0]}"
    answer = Client().get(f"{path}?from_token={ids[0] - 1}&upto_token={ids[-1]}")
    assert [row for _, row in answer.json()["updates"]] == ROWS


def test_handlers_and_parked_facts(ids, monkeypatch):
    seen: list[Any] = []

    def see(chunk: Chunk) -> None:
        seen.extend(row for fact in chunk for row in fact.rows)

    def fail(chunk: Chunk) -> None:
        raise ValueError

    options: dict[str, Any] = {"begin": Begin.OLDEST, "retry_seconds": 0.01, "attempts": 1}
    Reader("one", (Handler(NAME, "one", see, **options),)).catch_up()
    assert seen == ROWS
    seen.clear()
    Reader("two", (Handler(NAME, "two", fail, on_failure=OnFailure.PARK, **options),)).catch_up()
    parked = [row for parked in parked_facts("two").order_by("token") for row in parked.rows]
    assert [values(row) for row in parked] == [values(row) for row in ROWS]
    monkeypatch.setitem(known_handlers._handlers, "two", {NAME: Handler(NAME, "two", see, **options)})
    assert retry_parked("two") == (len(ROWS), 0)
    assert [values(row) for row in seen] == [values(row) for row in ROWS]


def test_a_handler_can_refer_to_its_fact(ids, model):
    """Rows of its effects point to the fact by a foreign key. The key of the fact is loaded only when it is used."""
    seen: list[Any] = []

    def see(fact: Any) -> None:
        seen.append(("id" in fact.__dict__, fact.pk))

    Reader("one", (Handler(NAME, "one", see, begin=Begin.OLDEST, attempts=1, each=True),)).catch_up()
    assert seen == [(False, pk) for pk in model.objects.order_by("stream_id").values_list("pk", flat=True)]


def test_recorded_rows():
    """What another server sent is kept as text, and read as what it was."""
    make = recorded_declaration("x/y").tables[0].row
    for row in ROWS:
        assert make([encode_json(row).decode()]) == row


@pytest.mark.parametrize(
    "statement", [f'SET LOCAL streams.maintenance = on; TRUNCATE "{TABLE}" RESTART IDENTITY', None]
)
def test_no_fact_gets_the_position_that_means_empty(model, statement):
    """What ``flush`` does with a sequence that a table owns, and what ``reset_sequences`` of Django's tests does."""
    reset = connection.ops.sequence_reset_by_name_sql(no_style(), [{"table": TABLE, "column": "stream_id"}])
    with connection.cursor() as cursor:
        for one in [statement] if statement else reset:
            cursor.execute(one)
    assert model.stream.append(word="first") == [2]


def test_recorded_facts_become_instances(ids):
    recorder = Recorder("main", "foreign.example", "tcp://there", "default")
    recorder.open()
    recorder.store(Batch(rows=[FollowedRow(NAME, "w", token, row) for token, row in enumerate(ROWS, 2)]))
    recorder.close()
    found = [recorded.fact() for recorded in RecordedFact.objects.order_by("token")]
    assert [(one.stream_id, one.instance_name) for one in found] == [(token, "w") for token in range(2, len(ROWS) + 2)]
    assert [{name: getattr(one, name) for name in FACTS[0]} for one in found] == [values(row) for row in ROWS]


def test_fields_that_do_not_travel_are_loaded(ids, model):
    """Their use finds the fact by its ID; nothing is asked before."""
    bound = model.stream
    full = bound.declaration
    (table,) = full.tables
    with mock.patch.object(bound, "declaration", replace(full, tables=(replace(table, columns=table.columns[:1]),))):
        made = bound.fact({"word": "sent", "@version": 1}, token=ids[0], writer="w")
    with CaptureQueriesContext(connection) as queries:
        assert (made.word, made.stream_id) == ("sent", ids[0])
        assert len(queries) == 0
        assert made.number == FACTS[0]["number"]
    assert made.pk == model.objects.get(stream_id=ids[0]).pk


def test_names_that_need_quotes_are_written_everywhere(ids, model):
    """Append worked or not, and one such stream took ``check_streams`` and the live page from all the others."""
    head = ids[-1]
    assert not [
        message for message in (*check_declarations(None), *check_session(None, ["default"])) if model in [message.obj]
    ]
    out = io.StringIO()
    call_command("check_streams", stdout=out)
    assert NAME in out.getvalue()
    wait_until(lambda: (found := read_snapshot().stream(NAME)) and found.head >= head)
    reader = Reader(NAME, (Handler(NAME, NAME, lambda chunk: None, begin=Begin.OLDEST),))
    reader.catch_up()
    with session() as cursor:
        cursor.execute(age_sql(declaration()), {"id": head})
        assert cursor.fetchone()[0] >= 0
        assert model.stream.table_maximum(cursor) == head
        assert position_before(cursor, declaration(), datetime(2020, 1, 1, tzinfo=UTC)) < ids[0]
        assert count_facts(cursor, declaration(), VectorToken(ids[0]), VectorToken(head)).facts == len(ids) - 1
        assert search(model.stream, {"text": PLAIN["word"]}) is not None
        (*_, done) = trim(cursor, TrimRequest(model.stream, Keep(facts=2)))
        assert done.rows == len(ids) - 2
        cursor.execute("BEGIN; SET LOCAL streams.maintenance = on")
        compact_keys(cursor, replace(declaration().tables[0], newest_per="select"), [PLAIN["word"]])
        cursor.execute("ROLLBACK")
    assert [fact.stream_id for fact in model.stream.read(after=ids[-3]).facts] == ids[-2:]


@pytest.mark.parametrize("name", ["a%b", 'a"b', 'public"."orders', "a%%b"])
def test_names_that_no_statement_can_have_are_refused(model, name):
    bound = model.stream
    (table,) = bound.declaration.tables
    (first, *others) = table.columns
    for changed in (replace(table, then_by=name), replace(table, columns=(replace(first, name=name), *others))):
        with mock.patch.object(bound, "declaration", replace(bound.declaration, tables=(changed,))):
            assert "streams.E036" in [message.id for message in check_declarations(None)]


def test_columns_of_spark(ids):
    """Columns of fields by name; JSON and arrays are text there. What they say is what travels."""
    names = tuple(column.key for column in declaration().tables[0].columns)
    (piece,) = pieces({writer(): (ids[0] - 1, ids[-1])}, [])
    try:
        batches = list(read_piece(ReadParameters(driver.dsn(), NAME, names, of_site=declaration()), piece))
    finally:
        for _, one in read_rows._kept:
            one.close()
        read_rows._kept.clear()
    found = [row for batch in batches for row in batch.to_pylist()]
    texts = [
        column.key for column in declaration().tables[0].columns if column.kind in (ColumnKind.JSON, ColumnKind.ARRAY)
    ]
    for row in found:
        row |= {name: None if row[name] is None else json.loads(row[name]) for name in texts}
    assert [values(row) for row in found] == [values(row) for row in ROWS]


@pytest.mark.spark
@pytest.mark.scenario
def test_a_spark_session_reads_a_stream_of_the_program(ids, tmp_path):
    """Its processes know no Django: the declaration comes with the source."""
    with spark_session("one_form", folder=tmp_path) as spark:
        register(spark)
        facts = spark.read.format("replsite").option("dsn", driver.dsn()).option("stream", NAME).load()
        found = facts.where("shop IS NOT NULL AND size = 'l'").orderBy("token").collect()
    wanted = [(number, row) for number, row in zip(ids, ROWS, strict=True) if row["shop"] is not None]
    assert [row["token"] for row in found] == [number for number, _ in wanted]
    same = (
        "word",
        "number",
        "flag",
        "words",
        "total",
        "moment",
        "day",
        "pause",
        "uid",
        "blob",
        "address",
        "shop",
        "größe",
    )
    assert [{name: row[name] for name in same} for row in found] == [
        {name: row[name] for name in same} for _, row in wanted
    ]
    assert [row["ratio"] for row in found] == [float(row["ratio"]) for _, row in wanted]


def test_json_that_is_appended_can_be_read_on_every_way(model):
    """A fact of 900 levels was appended, and no follower got past it."""

    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = {"a": value}
        return value

    for depth in (851, 990):
        with pytest.raises(UnusableFact, match=r"EveryKind\.thing is nested deeper than 850 levels"):
            registry.get(NAME).append(model(thing=nested(depth)))
    (number,) = registry.get(NAME).append(model(thing=nested(850)))
    wait_until(lambda: any(at.position >= number for at in stored(NAME).values()))
    with session() as cursor:
        rows, _ = rows_between(cursor, declaration(), None, number - 1, number, 100)
    assert rows[0].row["thing"] == nested(850)
    with session() as cursor:
        lines, _ = read_lines(cursor, declaration(), Read(NAME, writer(), number - 1, number), LINE_LIMIT)
    assert [row["thing"] for row in of_the_wire(lines.data.splitlines())] == [nested(850)]
    path = f"/_synapse/replication/get_repl_stream_updates/{NAME}/one-form-{number}"
    answer = Client().get(f"{path}?from_token={number - 1}&upto_token={number}")
    assert [row["thing"] for _, row in decode_json(answer.content.decode())["updates"]] == [nested(850)]


def test_pages_have_deep_json_wherever_the_caller_is(model):
    """A view deep within its project got ``RecursionError`` for a fact that was appended, and no page behind it."""
    value: Any = 1
    for _ in range(850):
        value = [value]

    def called(depth: int, work: Any) -> Any:
        return work() if not depth else called(depth - 1, work)

    (number,) = registry.get(NAME).append(model(thing=value))
    with transaction.atomic():
        (second,) = registry.get(NAME).append(model(thing=value))
    wait_until(lambda: any(at.position >= second for at in stored(NAME).values()))
    for depth in (0, 200, 600):
        newest = called(depth, lambda: model.stream.read(limit=2, newest=True))
        assert [fact.stream_id for fact in newest.facts] == [second, number]
        page = called(depth, lambda: model.stream.read(after=number - 1))
        assert [fact.thing for fact in page.facts] == [value, value]
    with transaction.atomic():
        assert [fact.thing for fact in called(200, lambda: model.stream.read(after=number - 1)).facts] == [value] * 2
        assert model.objects.count() == 2, "the connection is the caller's as before"
