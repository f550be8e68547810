"""The text of the functions, where a word more or less loses facts. What they do is tested on a server."""

from __future__ import annotations

import pytest

from streams.core.declaration import MAIN_PROCESS
from streams.holds.installed_sql import ANY_WRITER, CLASSES, DEFAULT_WRITER, bodies, class_of


def test_the_class_of_a_writer_never_changes():
    """Running transactions of an older version hold locks with it."""
    assert [class_of(name) for name in ("master", "north", "søuth", "")] == [606, 700, 3809, ANY_WRITER]
    assert {class_of(f"writer-{n}") for n in range(100_000)} == set(range(1, CLASSES + 1))


def test_a_session_without_a_name_writes_as_the_main_process():
    assert DEFAULT_WRITER == MAIN_PROCESS


@pytest.mark.parametrize("name", [name for name in bodies() if "hold" in name or "look" in name])
def test_sequences_are_never_read_without_their_lock(name: str):
    assert "pg_sequence_last_value" in bodies()[name]
    assert "last_value" not in bodies()[name].replace("pg_sequence_last_value", "")


def test_the_lock_is_taken_in_a_subtransaction():
    for name in ("streams_hold()", "streams_hold(text)"):
        body = bodies()[name]
        assert (
            body.index("BEGIN\n        WHILE")
            < body.index("pg_try_advisory_xact_lock_shared")
            < body.index("EXCEPTION WHEN SQLSTATE")
        )


def test_bounds_are_not_filtered_by_anything_that_a_prepared_transaction_lacks():
    assert not {"pid", "activity", "role", "granted"} & set(bodies()["streams_look(text[])"].replace(".", " ").split())


def test_no_driver_takes_the_text_for_a_template():
    for body in bodies().values():
        assert "%" not in body
