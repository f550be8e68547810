"""The page of log lines names every event that the code logs, with its level, and no other."""

from __future__ import annotations

import re

import pytest

from tests.support.scripts import load_script
from tests.support.session import PROJECT

script = load_script("log_events")
PAGE = (PROJECT / "docs" / "reference" / "logs.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| (\w+) \| [^|]{3}", PAGE, re.MULTILINE))


@pytest.fixture(scope="module")
def events():
    """Events of all code. Each process that collects tests loads this file, so they are not read before a test asks."""
    return script.log_events()


def test_the_page_has_every_event_and_no_other(events):
    assert ROWS.keys() == {event.name for event in events}


def test_levels_are_those_of_the_code(events):
    assert [event for event in events if ROWS[event.name] != event.level] == []


def test_names_are_a_subject_and_what_happened(events):
    assert [event.name for event in events if not re.fullmatch(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*", event.name)] == []


def test_an_event_whose_name_is_made_up_as_it_runs_is_noticed(tmp_path):
    room = tmp_path / "streams"
    room.mkdir()
    (room / "x.py").write_text('log.info("a.b")\nlog.warning(name)\n')
    with pytest.raises(ValueError, match=r"streams/x\.py:2"):
        script.log_events(tmp_path)


def test_both_ends_of_a_condition_are_found(tmp_path):
    room = tmp_path / "streams"
    room.mkdir()
    (room / "x.py").write_text('Condition(log, "a.away", "a.back", who=1)\nCondition(1, 2, 3)\n')
    assert [(event.name, event.level) for event in script.log_events(tmp_path)] == [
        ("a.away", "warning"),
        ("a.back", "info"),
    ]
