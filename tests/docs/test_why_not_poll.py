"""The table of why polling by ID loses facts, run statement by statement on real sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from streams.db import driver
from tests.docs.test_explanation import table_rows

STEPS = table_rows("explanation/why-not-poll-by-id.md", "| who | statement | answer |")


@pytest.fixture
def note(transactional_db: None) -> Iterator[None]:
    with closing(driver.direct_connection(application_name="poll")) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE note (id bigserial PRIMARY KEY, text text)")
        yield
        cursor.execute("DROP TABLE note")


@pytest.mark.usefixtures("note")
def test_the_table_of_the_page_happens() -> None:
    assert len(STEPS) == 7
    sessions = {who: driver.direct_connection(application_name=who) for who, *_ in STEPS}
    assert set(sessions) == {"A", "B", "reader"}
    try:
        for who, statement, answer in STEPS:
            cursor = sessions[who].cursor()
            cursor.execute(statement.strip("`"))
            rows = cursor.fetchall() if cursor.description else []
            assert " ".join(str(row[0]) for row in rows) == answer, statement
    finally:
        for session in sessions.values():
            session.close()
