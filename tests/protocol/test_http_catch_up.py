"""What a real 1.43 server answered over HTTP, asked of ours with the same facts in the tables: the same bytes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.test import Client

from streams import registry
from streams.core.declaration import ColumnKind, FactTable
from streams.models import StreamPosition

pytestmark = pytest.mark.django_db(transaction=True)
FILE = Path(__file__).parent.parent / "data" / "http" / "http_catch_up.txt.gz"
#: Recorded answers that ours differ from on purpose; see docs/reference/http-catch-up.md.
DELIBERATE = {
    "txn0000010": "1.43 ends an answer after about 100 rows, ours holds more",
    "txn0000011": "1.43 answers for caches with rows beyond the wanted end",
}


def recorded() -> Iterator[tuple[str, int, str]]:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        parts = [line.rstrip("\n") for line in lines if line.strip() and not line.startswith("#")]
    for place in range(0, len(parts), 3):
        yield parts[place].removeprefix("GET "), int(parts[place + 1]), parts[place + 2]


ANSWERS = list(recorded())


def txn_of(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2]


def stream_of(url: str) -> str:
    return urlsplit(url).path.split("/")[-2]


def values_of(stream: str, table: FactTable, row: list) -> dict[str, object] | None:
    """The columns that make this wire row; None when it is not of this table."""
    if stream == "events":
        kind, row = row
        if (kind == "state") != (table.name == "events_currentstatedelta"):
            return None
        if kind == "ev":
            row = [*row[:-1], "refused" if row[-1] else None]
    found: dict[str, object] = {}
    for column, value in zip(table.columns, row, strict=True):
        is_json = column.kind in (ColumnKind.JSON, ColumnKind.JSON_TEXT)
        found[column.name] = json.dumps(value, separators=(",", ":")) if is_json else value
    return found


def insert(stream: str, table: FactTable, token: int, values: dict[str, object]) -> None:
    sign = registry.get(stream).sign
    values = values | {table.id_column: sign * token, table.writer_column: "master"}
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # facts alone, without the rooms that they belong to
        for name, kind in needed(cursor, table.name):
            values.setdefault(name, FILLERS[kind] if kind != "text" else f"{name} {token} {len(values)}")
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join(["%s"] * len(values))
        cursor.execute(
            f"SET LOCAL streams.maintenance = on; INSERT INTO {table.name} ({names}) VALUES ({marks})",
            list(values.values()),
        )
        cursor.execute("SET session_replication_role = DEFAULT")


FILLERS = {
    "character varying": "1",
    "bigint": 1,
    "integer": 1,
    "smallint": 1,
    "boolean": False,
    "bytea": b"{}",
    "jsonb": "{}",
    "ARRAY": [],
}


def needed(cursor, table: str) -> list[tuple[str, str]]:
    cursor.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s AND is_nullable = 'NO' "
        "AND column_default IS NULL AND is_identity = 'NO'",
        [table],
    )
    return cursor.fetchall()


def answer_of(txn_id: str) -> tuple[str, int, str]:
    return next(answer for answer in ANSWERS if txn_of(answer[0]) == txn_id)


def fill(stream: str) -> None:
    """Everything that any recorded answer tells of the stream; the end of the stream is its last fact."""
    facts: dict[str, tuple[int, list]] = {}
    for url, _, body in ANSWERS:
        if stream_of(url) == stream:
            facts |= {json.dumps(update): (update[0], update[1]) for update in json.loads(body)["updates"]}
    for token, row in facts.values():
        for table in registry.get(stream).declaration.tables:
            values = values_of(stream, table, row)
            if values is not None:
                insert(stream, table, token, values)
    sign = registry.get(stream).sign
    last = max((token for token, _ in facts.values()), default=0)
    StreamPosition.objects.create(stream=stream, instance_name="master", position=sign * last, state="active")


@pytest.mark.parametrize("url", [url for url, _, _ in ANSWERS if txn_of(url) not in DELIBERATE], ids=txn_of)
def test_answers_are_those_of_a_real_server_byte_for_byte(url):
    status, body = next((status, body) for known, status, body in ANSWERS if known == url)
    if status == 200:
        fill(stream_of(url))
    response = Client().get(url)
    assert response.status_code == status
    assert response.content.decode() == body


def test_caches_never_go_beyond_the_wanted_end():
    url, _, _ = answer_of("txn0000011")
    fill("caches")
    body = Client().get(url).json()
    assert [update[0] for update in body["updates"]] == [1, 2, 3, 4, 5]
    assert (body["upto_token"], body["limited"]) == (5, False)


def test_a_larger_answer_begins_with_the_same_updates():
    url, _, body = answer_of("txn0000010")
    fill("events")
    ours, theirs = Client().get(url).json(), json.loads(body)
    assert theirs["limited"]
    assert ours["updates"][: len(theirs["updates"])] == theirs["updates"]
