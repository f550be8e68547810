"""The page of the wire tells all commands, sides, rows and limits as the program has them; each example is exact bytes."""

from __future__ import annotations

import re

import pytest

from events import declarations as events_catalog
from streams.catalog import declarations as catalog
from streams.core.json_codec import decode_json, encode_json
from streams.replication.protocol.commands import (
    COMMANDS,
    LATER_WORDS,
    LINE_LIMIT_BYTES,
    RData,
    Side,
    format_line,
    parse_line,
)
from streams.replication.protocol.connection import Limits
from streams.replication.protocol.rights import REPORTS, Rights
from streams.replication.server.catch_up_view import ANSWER_LIMIT_BYTES, ROWS_PER_ANSWER, TXN_ID_LIMIT
from tests.support.session import PROJECT

PAGE = (PROJECT / "docs" / "reference" / "wire.md").read_text()
DECLARATIONS = {d.name: d for d in (*events_catalog.declarations(), *catalog.declarations())}


def cells(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def code(cell: str) -> str:
    found = re.fullmatch(r"`(.*)`", cell)
    assert found, cell
    return found[1]


ROWS = cells("Rows of the sixteen streams")


def test_all_commands_are_told_in_their_order_with_their_sides():
    rows = cells("Commands")
    assert [code(row[0]) for row in rows] == list(COMMANDS)
    for name, server, client, *_ in rows:
        told = {side for side, cell in ((Side.SERVER, server), (Side.CLIENT, client)) if cell == "yes"}
        assert told == COMMANDS[code(name)].senders, name
        assert {server, client} <= {"yes", ""}
    assert {code(row[0]) for row in rows if "1.43 does not know it" in row[3]} == LATER_WORDS


@pytest.mark.parametrize("row", cells("Commands"), ids=lambda row: row[0])
def test_examples_of_commands_are_the_exact_lines(row):
    line = code(row[4])
    assert line.split(" ")[0] == code(row[0])
    assert format_line(parse_line(line)) == line.encode() + b"\n"


def test_lines_of_the_text_are_lines_of_the_protocol():
    lines = [line[4:] for line in PAGE.splitlines() if re.match(r"    ([<>] )?[A-Z]+ ", line)]
    lines = [line for line in lines if not line.startswith("GET ")]
    assert len(lines) >= 10
    for line in lines:
        text = line.removeprefix("< ").removeprefix("> ")
        command = parse_line(text)
        assert format_line(command).rstrip(b"\n") == text.encode()
        if line != text:
            side = Side.SERVER if line.startswith("<") else Side.CLIENT
            assert side in COMMANDS[command.WORD].senders, line


def test_streams_stand_in_the_order_of_the_wire():
    assert list(dict.fromkeys(code(row[0]) for row in ROWS)) == list(DECLARATIONS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0] + row[1][:9])
def test_rows_have_the_columns_of_the_declaration_and_exact_examples(row):
    name, form, example = code(row[0]), row[1], decode_json(code(row[2]))
    tables = {"ev": 0, "state": 1}
    kind, example = example if name == "events" else ("ev", example)
    assert name != "events" or f'"{kind}"' in form
    table = DECLARATIONS[name].tables[tables[kind]]
    named = re.search(r"\[([a-z_?, ]+)\]", form)
    assert named is not None
    columns = [column.name.replace("rejected_reason", "rejected") for column in table.columns]
    assert named[1].replace("?", "").split(", ") == columns
    nullable = [part.endswith("?") for part in named[1].split(", ")]
    assert len(example) == len(columns)
    assert all(may for value, may in zip(example, nullable, strict=True) if value is None)
    whole = decode_json(code(row[2]))
    assert encode_json(whole) == code(row[2]).encode()
    line = format_line(RData(name, "writer-1", 7, whole))
    assert parse_line(line.decode().rstrip("\n")) == RData(name, "writer-1", 7, whole)


def test_refusals_are_told_as_the_server_says_them():
    rows = dict(cells("Rights"))
    none = Rights((), "worker", (), ())
    assert f"ERROR {none.refusal(parse_line('NAME search'))}" == code(rows["`NAME search`"])
    assert none.refusal(parse_line("REPLICATE caches,events")) is None
    for report in sorted(REPORTS):
        example = next(code(row[4]) for row in cells("Commands") if code(row[0]) == report)
        said = f"ERROR {none.refusal(parse_line(example))}"
        assert said.replace(report, "USER_IP") == code(rows["`USER_IP …`, and each other report"])
    assert {word for word, grammar in COMMANDS.items() if Side.CLIENT in grammar.senders} - REPORTS == {
        "NAME", "PING", "ERROR", "REPLICATE",
    }  # fmt: skip


def test_limits_and_times_are_those_of_the_program():
    assert f"{LINE_LIMIT_BYTES:,} bytes" in PAGE
    limits = Limits()
    assert f"nothing else for {limits.ping_interval_seconds:.0f} seconds" in PAGE
    assert f"something every {limits.ping_timeout_seconds:.0f} seconds" in PAGE
    assert f"{ROWS_PER_ANSWER:,} rows, {ANSWER_LIMIT_BYTES >> 20} MiB" in PAGE
    assert f"{TXN_ID_LIMIT} characters" in PAGE
    in_memory = {name for name, declaration in DECLARATIONS.items() if declaration.in_memory}
    (told,) = re.findall(r"A stream in memory \(([^)]+)\)", PAGE)
    assert set(re.findall(r"`(\w+)`", told)) == in_memory
