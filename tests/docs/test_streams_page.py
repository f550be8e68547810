"""The page about streams tells exactly the streams that exist, with their tables, rows and functions."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from events import declarations as events_catalog
from streams import registry
from streams.catalog import declarations as catalog
from streams.core.declaration import StreamDeclaration

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "streams.md").read_text()
DECLARATIONS = {d.name: d for d in (*events_catalog.declarations(), *catalog.declarations())}


def cells() -> list[list[str]]:
    """The cells of the table of streams."""
    lines = [line for line in PAGE.split("## Appending")[0].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def columns(text: str) -> list[str]:
    return re.findall(r"[a-z_]+", re.sub(r'"\w+"', "", text))


def test_streams_stand_in_the_order_of_the_wire():
    names = [row[0].strip("`") for row in cells()]
    assert names == list(DECLARATIONS) or sorted(names) == sorted(DECLARATIONS)
    assert names == [name for name in registry.names() if name in DECLARATIONS]


@pytest.mark.parametrize("row", cells(), ids=lambda row: row[0])
def test_tables_rows_and_kind_are_those_of_the_declaration(row):
    declared: StreamDeclaration = DECLARATIONS[row[0].strip("`")]
    assert re.findall(r"`(\w+)`", row[1]) == [table.name for table in declared.tables]
    told = [columns(text) for text in row[2].split(";")]
    wanted = [
        [column.name.replace("rejected_reason", "rejected") for column in table.columns] for table in declared.tables
    ]
    assert told == wanted
    kind = "in memory" if declared.in_memory else "stored, backward" if declared.backward else "stored"
    assert row[3].startswith(kind)
    assert ("newest row per user" in row[3]) == any(table.newest_per for table in declared.tables)


def test_every_stream_has_a_function_that_exists():
    section = PAGE.split("## Appending")[1].split("## Streams that")[0]
    named = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }
    assert named == set(DECLARATIONS)
    for module, function in re.findall(r"`(streams\.[a-z_.]+)\.(\w+)\(", section):
        assert callable(getattr(importlib.import_module(module), function)), function
