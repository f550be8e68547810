"""The examples of holds on the pages about streams and the proof, statement by statement, and the table of planted faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.docs.test_explanation import table_rows
from tests.support.held_tables import drop, sessions
from tests.torture.holds.tables import PLANTS

PAGE = "explanation/proof.md"
STEPS = table_rows(PAGE, "| who | statement | answer |")
POSITIONS = table_rows("explanation/streams.md", "| session | step | position after it |")
FAULTS = table_rows(PAGE, "| planted fault | why it loses facts | found by the check |")


@pytest.fixture
def make(transactional_db: None) -> Iterator[Callable[[], Callable[..., Any]]]:
    """Makes sessions beside a stream ``notes``."""
    with sessions() as make:
        owner = make()
        owner("CREATE SEQUENCE notes START 2; CREATE TABLE note (stream_id bigint, instance_name text, text text)")
        owner("SELECT streams_hold_table('note', 'notes', 'notes')")
        try:
            yield make
        finally:
            drop("note", sequences=["notes"])


def test_the_example_of_holds_happens(make):
    assert len(STEPS) == 7
    own = {who: make() for who, *_ in STEPS}
    assert set(own) == {"A", "B", "reader"}
    for who, statement, answer in STEPS:
        rows = own[who](statement.strip("`"))
        assert " ".join(str(row[0]) for row in rows) == answer, statement


def test_positions_rise_as_the_page_about_streams_says(make):
    assert len(POSITIONS) == 7
    own, reader = {who: make() for who, *_ in POSITIONS}, make()
    for who, step, position in POSITIONS:
        own[who](step.strip("`"))
        assert str(reader("SELECT position FROM streams_look('{notes}')")[0][0]) == position, step


def test_the_table_of_planted_faults_is_that_of_the_torture():
    told = {fault.strip("`"): found == "yes" for fault, _, found in FAULTS}
    assert told == {name: plant.check_finds for name, plant in PLANTS.items()}
