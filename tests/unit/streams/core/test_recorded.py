"""Names and declarations of recorded streams."""

from __future__ import annotations

import pytest

from streams.core.queries import rows_sql
from streams.core.recorded import check_record_name, is_recorded, recorded_declaration, recorded_names, split_recorded


def test_a_recorded_stream_is_named_after_its_record():
    assert is_recorded("main/events")
    assert not is_recorded("events")
    assert split_recorded("main/events") == ("main", "events")
    assert recorded_names("main/events") == {"server": "main", "stream": "events"}


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "-a", "a'", "a" * 101])
def test_names_that_cannot_be(name):
    with pytest.raises(ValueError, match="letters, digits"):
        check_record_name(name)


@pytest.mark.parametrize("name", ["main/", "main/a b", "main/a'b", "main/a/b", "events"])
def test_streams_that_cannot_be(name):
    with pytest.raises(ValueError, match="NAME/stream"):
        split_recorded(name)


def test_the_declaration_reads_one_record_and_stream():
    declaration = recorded_declaration("main/events")
    sql = rows_sql(declaration, declaration.tables[0])
    assert "name = 'main'" in sql
    assert "stream = 'events'" in sql
    assert declaration.tables[0].row(['["ev",[1]]']) == ["ev", [1]]
