"""Tokens: every case of the recorded vectors, and the rules that they do not name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from streams.core.tokens import RoomToken, VectorToken, numbered
from streams.errors import TokenError
from tests.oracles.token_ranges import in_range

VECTORS = Path(__file__).parents[3] / "data/vectors/streams/tokens.jsonl.gz"
CASES = [json.loads(line) for line in gzip.decompress(VECTORS.read_bytes()).splitlines()]
NAMES = {number: f"w{number}" for number in range(1, 5)}
NUMBERS = {name: number for number, name in NAMES.items()}


def made(given: list[Any]) -> VectorToken:
    return VectorToken(given[0], given[1])


def plain(token: VectorToken) -> list[Any]:
    return [token.base, dict(token.entries)]


def parsed(case: dict[str, Any]) -> dict[str, Any]:
    try:
        if case["kind"] == "room":
            room = RoomToken.parse(case["text"], NAMES)
            return {"token": plain(room.stream), "topological": room.topological, "again": room.text(NUMBERS)}
        token = VectorToken.parse(case["text"], NAMES)
        return {"token": plain(token), "again": token.text(NUMBERS)}
    except TokenError:
        return {"error": True}


def written(case: dict[str, Any]) -> dict[str, Any]:
    token = made(case["token"])
    return {"plain": token.text(NUMBERS), "room": RoomToken(token).text(NUMBERS)}


def after_partial_read(case: dict[str, Any]) -> dict[str, Any]:
    return {"next_low": plain(made(case["low"]).after_partial_read(made(case["high"]), case["last_read"]))}


OPERATIONS = {
    "to_string": written,
    "parse": parsed,
    "merge": lambda case: {"merged": plain(made(case["a"]).merge(made(case["b"])))},
    "before_or_equal": lambda case: {"result": made(case["a"]).before_or_equal(made(case["b"]))},
    "bound": lambda case: {"bounded": plain(made(case["token"]).bounded_by(case["max"]))},
    "in_range": lambda case: {
        "result": in_range(made(case["low"]), made(case["high"]), case["writer"], case["position"])
    },
    "after_partial_read": after_partial_read,
    "from_positions": lambda case: {"token": plain(VectorToken.of(case["linear"], case["positions"]))},
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_recorded_cases(operation: str) -> None:
    for number, case in enumerate(CASES):
        if case["op"] == operation:
            found = OPERATIONS[operation](case)
            assert found == {key: case[key] for key in found}, f"case {number}"


def test_all_cases_are_here() -> None:
    assert len(CASES) == 227
    assert {case["op"] for case in CASES} == OPERATIONS.keys()


@pytest.mark.parametrize(
    "text",
    ["", "x5", "s", "m", "m5~9.7", "m5~1", "m5~1.", "m5~1.x", "m5~.7", "m7~1.5", "5~1.7", "t5", "t-5", "s 5", "s5\n", "s5.0",
     "m5~1.7~~2.8", "s٣", "s" + "9" * 20, "s1e3"],
)  # fmt: skip
def test_unreadable_room_token(text: str) -> None:
    with pytest.raises(TokenError):
        RoomToken.parse(text, NAMES)


@pytest.mark.parametrize("text", ["", "-5", "+5", " 5", "s5", "m-5", "m5~1.-7", "0x5"])
def test_unreadable_plain_token(text: str) -> None:
    with pytest.raises(TokenError):
        VectorToken.parse(text, NAMES)


def test_error_shows_little_of_a_long_text() -> None:
    with pytest.raises(TokenError) as error:
        RoomToken.parse("s" + "x" * 100_000, NAMES)
    assert len(str(error.value)) < 300


def test_too_many_entries_are_refused_before_they_are_read() -> None:
    with pytest.raises(TokenError, match="at most"):
        VectorToken.parse("m1" + "~1.2" * 10_001, NAMES)


def test_entries_above_the_base_only() -> None:
    with pytest.raises(TokenError, match="above the base"):
        VectorToken(5, {"w1": 5})


def test_entries_cannot_be_changed() -> None:
    entries = {"w1": 9}
    token = VectorToken(5, entries)
    entries["w1"] = 1
    assert token.entries["w1"] == 9
    with pytest.raises(TypeError):
        token.entries["w1"] = 7  # type: ignore[index]


def test_equal_tokens_have_equal_hashes() -> None:
    assert len({VectorToken(5, {"a": 7, "b": 8}), VectorToken(5, {"b": 8, "a": 7})}) == 1


def test_tokens_are_shown_by_the_writers_names() -> None:
    assert str(VectorToken(9)) == "9"
    assert str(VectorToken.of(7, {"web-2": 9, "web-1": 8})) == "7, web-1 8, web-2 9"


def test_highest_and_covers() -> None:
    token = VectorToken(5, {"north": 9})
    assert token.highest == 9
    assert token.covers("north", 9)
    assert not token.covers("south", 6)
    assert not token.covers(None, 6)


def test_numbers_for_tools_without_a_table() -> None:
    assert numbered(["b", "a"]) == {"b": 1, "a": 2}


@pytest.mark.parametrize("text", ["m5~1.9~1.7", "m5~1.7~1.9", "m5~1.7~01.7~"])
def test_a_writer_that_is_named_twice_is_refused(text: str) -> None:
    """The last of two positions counted, in silence."""
    with pytest.raises(TokenError, match="twice"):
        VectorToken.parse(text, {1: "north"})
