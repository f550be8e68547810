"""The reference of reading rooms names what there is, with its arguments, fields and limits."""

import inspect
import re
from pathlib import Path

import pytest

from events import errors
from events.reading import pages, timeline
from events.reading.event_json import ServedEvent

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "reading-rooms.md").read_text()
WRITTEN = {name: getattr(pages, name) for name in pages.__all__ if inspect.isfunction(getattr(pages, name))}
WRITTEN |= {"topological_walk": timeline.topological_walk, "state_at": timeline.state_at}
CALLS = re.findall(r"^\| `(\w+)\(([^`]+)\)` \|", PAGE, re.M)


def plain(signature):
    """Names, defaults and the star, without types and without ``using``."""
    found = []
    for name, parameter in signature.parameters.items():
        if name == "using":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        default = parameter.default
        shown = "EVERYTHING" if name == "only" else repr(default)
        found.append(name if default is parameter.empty else f"{name}={shown}")
    return ", ".join(found)


@pytest.mark.parametrize("name, arguments", CALLS)
def test_calls_are_as_written(name, arguments):
    function = WRITTEN[name]
    assert plain(inspect.signature(function)) == arguments


def test_every_call_is_written_down():
    assert set(WRITTEN) == {name for name, _ in CALLS}


def test_every_field_of_an_event_is_written_down():
    told = set(re.findall(r"`(\w+)(?:\(\))?`", PAGE.split("ServedEvent`")[1].split("\n##")[0]))
    public = {name for name in dir(ServedEvent) if not name.startswith("_")}
    assert told == public


def test_limits_are_as_written():
    assert f"{pages.PAGE_LIMIT:,} events" in PAGE and f"{pages.IDS_LIMIT:,} IDs" in PAGE
    assert f"{pages.PAGE_LIMIT // 2} events on each side" in PAGE


def test_errors_are_those_of_reading():
    told = set(re.findall(r"`(\w+)`", PAGE.split("\n## Errors")[1])) - {"InvalidQuery"}
    assert all(issubclass(getattr(errors, name), errors.ReadingError) for name in told) and len(told) == 5
