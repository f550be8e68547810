"""What a sequence must be, in words and statements; and who reads one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streams.core.sequences import FoundSequence, behind
from tests.support.session import PROJECT

RIGHT = FoundSequence(
    "orders", "orders_stream_seq", 1, "p", "bigint", 2, 1, 2**63 - 1, 1, 1, False, True, 40, ("public",), (), ""
)
IN_MEMORY = replace(RIGHT, empty_position=0, start=1, last_value=0)


def test_a_right_one_has_no_faults():
    assert (RIGHT.faults, RIGHT.sentence, RIGHT.fix, RIGHT.mending()) == ((), "", "", [])
    assert (IN_MEMORY.faults, IN_MEMORY.behind(0, 0)) == ((), "")


@pytest.mark.parametrize(
    ("change", "said", "statement"),
    [
        ({"cache": 50}, "has CACHE 50, not CACHE 1", "CACHE 1"),
        ({"increment": -1}, "has INCREMENT BY -1, not INCREMENT BY 1", "INCREMENT BY 1"),
        ({"cycles": True}, "has CYCLE, not NO CYCLE", "NO CYCLE"),
        ({"minimum": -5}, "has MINVALUE -5, not MINVALUE 1", "MINVALUE 1"),
        ({"start": 1}, "has START WITH 1, not START WITH 2", "START WITH 2 NO CYCLE"),
        (
            {"data_type": "integer", "maximum": 2**31 - 1},
            "has AS integer, not AS bigint; it has MAXVALUE 2147483647, not MAXVALUE 9223372036854775807",
            "AS bigint MAXVALUE 9223372036854775807",
        ),
        (
            {"persistence": "u"},
            "is UNLOGGED, and begins anew after a crash",
            "SET LOGGED; ALTER SEQUENCE orders_stream_seq NO CYCLE",
        ),
        ({"other_owner": "x"}, "is owned by x, and is restarted and dropped with it", "OWNED BY NONE"),
    ],
)
def test_each_property_is_named_with_the_statement_that_mends_it(change: dict[str, Any], said: str, statement: str):
    found = replace(RIGHT, **change)
    assert "; ".join(found.mending()) == f"ALTER SEQUENCE orders_stream_seq {statement}"
    assert found.sentence == (
        f"The sequence orders_stream_seq {said}. To mend it: check_streams --repair as the owner of the sequence, or: "
        f"ALTER SEQUENCE orders_stream_seq {statement}."
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"persistence": None, "cache": 0}, "is missing. To mend it: manage.py migrate, or put it back"),
        (
            {"is_readable": False, "last_value": None},
            "may not be read by this role.* GRANT SELECT, USAGE, UPDATE ON SEQUENCE",
        ),
        (
            {"schemas": ("other", "public")},
            r"found in several schemas \(other, public\)\. To mend it: correct search_path",
        ),
        ({"persistence": "t"}, "is a temporary one that hides the real one. To mend it: drop it"),
        ({"missing_tables": ("shop_order",)}, "belongs to a stream whose table shop_order is missing"),
    ],
)
def test_what_no_statement_about_the_sequence_mends_says_what_does(change: dict[str, Any], said: str):
    found = replace(RIGHT, **change)
    assert re.search(said, found.sentence) and [fault.loses_facts for fault in found.faults] == [True]
    assert (found.mending(), found.is_mendable) == ([], False)


def test_only_a_wrong_start_harms_nobody_yet():
    assert [fault.loses_facts for fault in replace(RIGHT, start=7).faults] == [False]


@pytest.mark.parametrize(
    ("left", "is_told", "is_urgent"),
    [
        (2**63 // 100, False, False),
        (2**63 // 100 - 1, True, False),
        (2**32, True, False),
        (2**32 - 1, True, True),
        (0, True, True),
    ],
)
def test_one_with_few_ids_left_is_told_and_loses_nothing(left: int, is_told: bool, is_urgent: bool):
    found = replace(RIGHT, last_value=2**63 - 1 - left)
    assert [fault.loses_facts for fault in found.faults] == [False] * is_told
    assert (f"has {left:,} IDs left" in found.sentence, found.is_almost_used_up) == (is_told, is_urgent)
    assert found.mending() == []


def test_several_faults_are_mended_by_one_statement_and_it_can_go_on_elsewhere():
    found = replace(RIGHT, cache=20, cycles=True, persistence="u")
    assert found.mending(90) == [
        "ALTER SEQUENCE orders_stream_seq SET LOGGED",
        "ALTER SEQUENCE orders_stream_seq CACHE 1 NO CYCLE RESTART WITH 90",
    ]


@pytest.mark.parametrize(
    ("value", "in_tables", "stored", "empty", "said"),
    [
        (9, 9, 9, 1, ""), (9, 10, 9, 1, "behind table"), (9, 10, 10, 1, "behind stored position"),
        (1, 0, 0, 1, ""), (0, 0, 0, 1, "before its first value"), (0, 0, 0, 0, ""), (0, 0, 1, 1, "behind stored position"),
    ],
)  # fmt: skip
def test_where_its_value_must_be(value: int, in_tables: int, stored: int, empty: int, said: str):
    assert behind(value, in_tables, stored, empty) == said
    assert replace(RIGHT, last_value=value, empty_position=empty).behind(in_tables, stored) == said


def test_of_a_value_that_cannot_be_read_nothing_is_said():
    assert replace(RIGHT, last_value=None).behind(5, 5) == ""


# --- who reads a sequence -----------------------------------------------------------------------------------------


_COLUMN = re.compile(r"\b(last_value|is_called)\b")


def _sql(path: Path) -> Iterator[str]:
    """The texts of a module that read the row of a sequence: a column of it, beside words of SQL."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)) if _COLUMN.search(source) else ():
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if _COLUMN.search(text) and re.search(r"\b(SELECT|FROM|WHERE)\b", text):
            yield text


#: They read sequences that Synapse moves, which holds nothing.
OF_A_SYNAPSE = {
    "pipeline/doctor/server_streams.py",
    "pipeline/mirror/source.py",
    "tests/support/synapse_database.py",
    "tests/support/synapse_server.py",
}


def test_the_row_of_a_sequence_is_read_in_one_statement_and_one_function():
    """Anywhere else it may show IDs that were not given out: ``pg_sequence_last_value``, or the view, reads under the lock."""
    packages = ("streams", "state", "events", "pipeline", "replsite", "script", "examples", "tests")
    reads = {
        (path.relative_to(PROJECT).as_posix(), text)
        for package in packages
        for path in (PROJECT / package).rglob("*.py")
        for text in _sql(path)
        if "pg_sequences" not in text
        and path != PROJECT / "tests" / "torture" / "holds" / "tables.py"  # a planted fault
        and path.relative_to(PROJECT).as_posix() not in OF_A_SYNAPSE
    }
    assert sorted(place for place, _ in reads) == ["streams/core/sequences.py", "streams/holds/installed_sql.py"], reads
