"""The page about sync names what there is: streams with their keys, functions, arguments, errors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from events import errors
from events.notifier import notifier
from events.notifier.routing import NOT_ROUTED
from events.sync import sync
from events.sync.providers import LatestRowPerKey, providers
from events.sync.sync import LONGEST_SECONDS, SyncAnswer
from streams import errors as stream_errors

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "sync.md").read_text()


def table(header: str) -> list[list[str]]:
    """The cells below a table's head."""
    rows = PAGE.split(f"| {header} |", 1)[1].splitlines()[2:]
    found = []
    for row in rows:
        if not row.startswith("|"):
            return found
        found.append([cell.strip() for cell in row.strip("|").split("|")])
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)", cell)


def test_every_stream_is_told_with_its_key():
    told = {name: row for row in table("stream | key | value") for name in names(row[0])}
    assert set(told) == set(providers())
    for name, found in providers().items():
        provider = getattr(found, "lists", found)  # of typing, of which some users are left out
        assert isinstance(provider, LatestRowPerKey)
        assert len(told[name][1].split(",")) == len(provider.key), name
        values = [column.removeprefix("json:") for column in provider.value] or ["position"]
        assert values[0] in names(told[name][2]), name


def test_streams_that_concern_nobody_are_named():
    assert all(f"`{name}`" in PAGE for name in NOT_ROUTED)


def test_arguments_and_parts_of_answers_are_told():
    arguments = {name for row in table("argument |") for name in names(row[0])}
    assert arguments == set(inspect.signature(sync.sync).parameters) - {"user_id", "using"}
    assert {name for row in table("answer |") for name in names(row[0])} == set(SyncAnswer.__dataclass_fields__)
    assert f"0 to {LONGEST_SECONDS:g}" in PAGE


def test_errors_and_functions_exist():
    for row in table("error | when"):
        (name,) = names(row[0])
        assert hasattr(errors, name) or hasattr(stream_errors, name)
    told = {name for row in table("function |") for name in names(row[0])}
    assert told == set(notifier.__all__) - {"At", "UserChanges", "figures", "stop_feeds", "may_have_changed"}
