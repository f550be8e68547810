"""A row has one form, whichever way it takes: through tables, the wire, HTTP, a handler, parked facts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.db import connection, models
from django.test import Client

from events.notifier.rows import newest_rows
from pipeline.source import read_rows
from pipeline.source.offsets import pieces
from pipeline.source.read_rows import ReadParameters, read_piece
from streams import registry
from streams.caching import CachedFunction
from streams.core import lookup
from streams.core.invalidation import stores
from streams.core.json_codec import decode_json, encode_json
from streams.core.recorded import recorded_declaration
from streams.db import driver
from streams.declare import sequence_of, stream
from streams.facts import Fact
from streams.follow import Begin, Chunk, Handler, OnFailure, Reader, parked_facts
from streams.follow import handlers as declared
from streams.follow.dead_letters import retry_parked
from streams.reading import cache_feed
from streams.reading.rows import rows_between
from streams.replication.common.table_rows import FactRange, table_rows
from streams.replication.protocol.announcer import Read
from streams.replication.server.broadcast_reader import read_lines
from tests.support import emptying
from tests.support.waiting import wait_until
from tests.support.writing import session, stored

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "one_form"
LINE_LIMIT = 16384
COLUMNS = ("word", "short", "slug", "number", "small", "smaller", "flag", "thing", "words", "numbers")
#: Values of all columns, in their order, and nulls.
ROWS: list[list[Any]] = [
    ['ü " \\ \n', "s", "a-b", 2**62, -5, 7, True, {"b": [1, None, {"a": 1.5}], "a": "ü"}, ["x", None, '"'], [1, None]],
    ["{}", "null", "x", 0, 0, 0, False, [], [], []],
    [None] * 10,
    ["1", "2", "3", 4, 5, 6, True, "a string", ["{}"], [7]],
    ["1", "2", "3", 4, 5, 6, True, '{"looks": "like JSON"}', ["{}"], [7]],
    ["1", "2", "3", 4, 5, 6, True, 12345678901234567890, ["{}"], [7]],
    ["1", "2", "3", 4, 5, 6, True, False, ["{}"], [7]],
]


@pytest.fixture(scope="module")
def model(django_db_setup: None, django_db_blocker: Any) -> Iterator[type[Fact]]:
    """A stream with a column of every kind."""
    known = {name: dict(getattr(lookup, name)) for name in ("_streams", "_by_table")}

    class OneForm(Fact):
        word = models.TextField(null=True)
        short = models.CharField(max_length=9, null=True)
        slug = models.SlugField(null=True)
        number = models.BigIntegerField(null=True)
        small = models.IntegerField(null=True)
        smaller = models.SmallIntegerField(null=True)
        flag = models.BooleanField(null=True)
        thing = models.JSONField(null=True)
        words = ArrayField(models.TextField(null=True), null=True)
        numbers = ArrayField(models.BigIntegerField(null=True), null=True)

        class Meta:
            app_label = "streams"
            db_table = "test_one_form"

    bound = stream(NAME, *COLUMNS)(OneForm)
    sequence = sequence_of("test_one_form")
    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            editor.create_model(bound)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE SEQUENCE {sequence}; SELECT nextval('{sequence}')")
    emptying.forget_tables()  # there is one more to empty
    yield bound
    emptying.forget_tables()
    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            editor.delete_model(bound)
        with connection.cursor() as cursor:
            cursor.execute(f"DROP SEQUENCE {sequence}")
    for name, before in known.items():
        found = getattr(lookup, name)
        found.clear()
        found.update(before)
    del apps.all_models["streams"]["oneform"]
    apps.clear_cache()


@pytest.fixture
def ids(model: type[Fact]) -> list[int]:
    """A fact of each row, and their writer's position behind them."""
    facts = [model(**dict(zip(COLUMNS, row, strict=True))) for row in ROWS]
    found = registry.get(NAME).append(*facts)
    wait_until(lambda: any(at.position >= found[-1] for at in stored(NAME).values()), 30.0)
    return found


def declaration() -> Any:
    return registry.get(NAME).declaration


def writer() -> str:
    return next(iter(stored(NAME)))


def of_the_wire(lines: list[bytes]) -> list[Any]:
    return [decode_json(line.split(b" ", 4)[4].decode()) for line in lines if line.startswith(b"RDATA")]


def test_tables_read_on_a_connection_of_django(ids):
    with connection.cursor() as cursor:
        rows, _ = rows_between(cursor, declaration(), None, ids[0] - 1, ids[-1], 100)
        fast, _ = table_rows(cursor, declaration(), FactRange(ids[0] - 1, ids[-1]), 100)
    assert [row.row for row in rows] == ROWS
    assert [row.row for row in fast] == ROWS


def test_tables_read_on_a_direct_connection(ids):
    with session() as cursor:
        rows, _ = rows_between(cursor, declaration(), None, ids[0] - 1, ids[-1], 100)
        fast, _ = table_rows(cursor, declaration(), FactRange(ids[0] - 1, ids[-1]), 100)
        newest = newest_rows(cursor, declaration(), {writer(): ids[-1]}, 100)
    assert [row.row for row in rows] == ROWS
    assert [row.row for row in fast] == ROWS
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
    assert [row for parked in parked_facts("two").order_by("token") for row in parked.rows] == ROWS
    monkeypatch.setitem(declared._handlers, "two", {NAME: Handler(NAME, "two", see, **options)})
    assert retry_parked("two") == (len(ROWS), 0)
    assert sorted(json.dumps(row, sort_keys=True) for row in seen) == sorted(
        json.dumps(row, sort_keys=True) for row in ROWS
    )


def test_rules_of_cached_values(ids, model, monkeypatch):
    """The rule of a cache is given the same row for a fact of this process as for one of another."""
    mine: list[Any] = []
    theirs: list[Any] = []
    into = mine
    made = CachedFunction("one_form_values", lambda key: key, 10)
    try:
        registry.get(NAME).add_caches("test_one_form", {"one_form_values": lambda row: into.append(row) or []})
        assert cache_feed.is_hearing()
        registry.get(NAME).append(*(model(**dict(zip(COLUMNS, row, strict=True))) for row in ROWS))
        into = theirs
        with session() as cursor:
            rows, _ = rows_between(cursor, declaration(), None, ids[0] - 1, ids[-1], 100)
            registry.get(NAME).drops_of(cursor, [row.row for row in rows])
        assert mine == theirs == ROWS
        assert made.store is stores["one_form_values"]
    finally:
        del stores["one_form_values"]


def test_recorded_rows():
    """What another server sent is kept as text, and read as what it was."""
    make = recorded_declaration("x/y").tables[0].row
    for row in ROWS:
        assert make([encode_json(row).decode()]) == row


def test_columns_of_spark(ids, monkeypatch):
    """JSON is text there; what it says is what travels. An executor reads streams of the catalog, so it is lent this one."""
    monkeypatch.setattr(read_rows, "declaration_of", lambda name: declaration())
    names = tuple(name for name in COLUMNS if name != "numbers")  # arrays of the catalog are of text
    (piece,) = pieces({writer(): (ids[0] - 1, ids[-1])}, [])
    try:
        batches = list(read_piece(ReadParameters(driver.dsn(), NAME, names), piece))
    finally:
        for _, one in read_rows._kept:
            one.close()
        read_rows._kept.clear()
    found = [row for batch in batches for row in batch.to_pylist()]
    for row in found:
        row["thing"] = None if row["thing"] is None else json.loads(row["thing"])
    assert [[row[name] for name in names] for row in found] == [row[:-1] for row in ROWS]
