"""Every stream of the catalog, with any content: table row -> wire row -> line -> what a client reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events import declarations as events_catalog
from streams.catalog import declarations as catalog
from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.json_codec import encode_json
from streams.reading.rows import rows_between
from streams.replication.protocol.announcer import Read, encode_rows
from streams.replication.protocol.commands import Position, RData, parse_line
from streams.replication.protocol.rdata_sql import can_write_lines, encode_lines, lines_sql
from tests.properties.test_wire import JSON
from tests.support.effort import examples
from tests.support.writing import session
from tests.unit.streams.replication.protocol.test_announcer import Row

DECLARATIONS = {d.name: d for d in (*events_catalog.declarations(), *catalog.declarations())}
#: What a text column of PostgreSQL can hold.
TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30)
LIMIT = 16_384
VALUES = {
    ColumnKind.TEXT: TEXT,
    ColumnKind.BIGINT: st.integers(-(2**63), 2**63 - 1),
    ColumnKind.BOOLEAN: st.booleans(),
    ColumnKind.JSON_TEXT: st.builds(lambda value: encode_json(value).decode(), JSON),
    ColumnKind.TEXT_ARRAY: st.lists(TEXT, max_size=4),
}


def value(column: Column) -> st.SearchStrategy[object]:
    found = VALUES[column.kind]
    return st.none() | found if column.nullable else found


@st.composite
def facts(draw: st.DrawFn, declaration: StreamDeclaration) -> list[tuple[int, FactTable, list[object]]]:
    """(token, table, values) in the order of the wire: tokens ascending, tables in their order, rows as inserted."""
    tokens = sorted(draw(st.sets(st.integers(2, 50), min_size=1, max_size=5)))
    found = []
    for token in tokens:
        most = 3 if all(table.then_by for table in declaration.tables) else 1
        tables = draw(st.lists(st.sampled_from(declaration.tables), min_size=1, max_size=most))
        for table in sorted(tables, key=declaration.tables.index):
            found.append((token, table, [draw(value(column)) for column in table.columns]))
    return found


def parsed(data: bytes) -> list[tuple[int | None, object]]:
    commands = [parse_line(line) for line in data.decode("ascii").split("\n")[:-1]]
    assert all(isinstance(command, RData | Position) for command in commands)
    return [(command.token, command.row) for command in commands if isinstance(command, RData)]


def wanted(found: list[tuple[int, FactTable, list[object]]]) -> list[tuple[int | None, object]]:
    """Rows as a client gets them: all but the last of a token without it."""
    following = [*found[1:], (None, None, None)]
    return [
        (None if after[0] == token else token, json.loads(json.dumps(table.row(values))))
        for (token, table, values), after in zip(found, following, strict=True)
    ]


@pytest.mark.parametrize("name", DECLARATIONS)
@given(data=st.data())
@settings(max_examples=examples(25), deadline=None)
def test_client_reads_what_the_row_says(name, data):
    found = data.draw(facts(DECLARATIONS[name]))
    rows = [Row(token, table.row(values)) for token, table, values in found]
    lines = encode_rows(Read(name, "w", 0, 50), rows, 50, LIMIT * 100)
    assert parsed(lines.data) == wanted(found)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", [one.name for one in catalog.declarations() if can_write_lines(one, "w")])
def test_database_writes_the_same_lines_as_python(name):
    """With any content, NULs aside."""
    declaration = DECLARATIONS[name]
    (table,) = declaration.tables
    columns = ", ".join([table.id_column, "instance_name", *(column.name for column in table.columns)])
    places = ", ".join(["%s"] * (2 + len(table.columns)))

    @given(found=facts(declaration))
    @settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
    def compare(found: list[tuple[int, FactTable, list[object]]]) -> None:
        with session() as cursor:
            cursor.execute("SET streams.maintenance = on")  # the IDs are chosen
            cursor.execute(f"DELETE FROM {table.name}")
            for token, _, values in found:
                cursor.execute(
                    f"SET LOCAL streams.maintenance = on; INSERT INTO {table.name} ({columns}) VALUES ({places})",
                    [token, "w", *values],
                )
            step = Read(name, "w", 0, 50)
            parameters = {"prefix": f"RDATA {name} w ", "writer": "w", "after": 0, "upto": 50, "limit": 1000}
            cursor.execute(lines_sql(declaration), parameters)
            written = encode_lines(step, cursor.fetchone(), LIMIT * 100)
            rows, reached = rows_between(cursor, declaration, "w", 0, 50, 1000)
        assert written is not None
        by_python = encode_rows(step, rows, reached, LIMIT * 100).data
        assert written[0].data == by_python
        assert parsed(written[0].data) == wanted(found)

    compare()
