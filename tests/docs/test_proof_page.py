"""The example of holds on the page of the proof, statement by statement, and its table of planted faults."""

from __future__ import annotations

import pytest

from tests.docs.test_explanation import table_rows
from tests.support.held_tables import drop, sessions
from tests.torture.holds.tables import PLANTS

PAGE = "explanation/proof.md"
STEPS = table_rows(PAGE, "| who | statement | answer |")
FAULTS = table_rows(PAGE, "| planted fault | why it loses facts | found by the check |")


@pytest.mark.django_db(transaction=True)
def test_the_example_of_holds_happens():
    assert len(STEPS) == 7
    with sessions() as make:
        owner = make()
        owner("CREATE SEQUENCE notes START 2; CREATE TABLE note (stream_id bigint, instance_name text, text text)")
        owner("SELECT streams_hold_table('note', 'notes', 'notes')")
        try:
            own = {who: make() for who, *_ in STEPS}
            assert set(own) == {"A", "B", "reader"}
            for who, statement, answer in STEPS:
                rows = own[who](statement.strip("`"))
                assert " ".join(str(row[0]) for row in rows) == answer, statement
        finally:
            drop("note")
            owner("DROP SEQUENCE notes; DELETE FROM streams_held WHERE stream = 'notes'")


def test_the_table_of_planted_faults_is_that_of_the_torture():
    told = {fault.strip("`"): found == "yes" for fault, _, found in FAULTS}
    assert told == {name: plant.check_finds for name, plant in PLANTS.items()}
