"""Options of the format ``replsite``: what is wrong is named."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from pipeline.source.options import ReadOptions, WriteOptions

GIVEN = {"dsn": "dbname=x", "stream": "caches"}


def read(**options):
    return ReadOptions.read(CaseInsensitiveDict({**GIVEN, **options}))


def test_what_is_not_said_has_a_default():
    found = read()
    assert (found.linear, found.max_rows, found.rows_per_partition) == (False, 100_000, 50_000)
    assert (found.starting_offsets, found.starting_vector) == ("earliest", None)


def test_names_are_read_in_any_case():
    assert read(MAXROWS="7").max_rows == 7


def test_a_vector_to_begin_at():
    assert read(startingOffsets='{"master": 42}').starting_vector == {"master": 42}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxRows": "many"}, "maxRows is 'many'"),
        ({"maxRows": "-1"}, "a number of 0 to"),
        ({"rowsPerPartition": "0"}, "a number of 1 to"),
        ({"rowsPerPartition": "9" * 5000}, "rowsPerPartition"),
        ({"view": "both"}, "writer or linear"),
        ({"startingOffsets": "newest"}, "earliest, latest or a JSON object"),
        ({"startingOffsets": "[1]"}, "earliest, latest or a JSON object"),
        ({"startingOffsets": json.dumps({"w": -1})}, "JSON object of positions"),
        ({"startingOffsets": json.dumps({"w": True})}, "JSON object of positions"),
        ({"startingOffsets": "[" * 100_000}, "JSON object of positions"),
        ({"readerName": "x" * 201}, "at most 200"),
        ({"readerName": "a\nb"}, "printable"),
        ({"maxRow": "5"}, "no option 'maxrow' here; it has dsn, stream, view"),
        ({"stream": "main/events", "view": "linear"}, "recorded stream has no linear position"),
    ],
)
def test_what_cannot_be_used_is_named(options, said):
    with pytest.raises(ValueError, match=said):
        read(**options)


def test_writing_takes_a_name_of_its_own():
    assert WriteOptions.read(GIVEN).writer == "spark"
    assert WriteOptions.read({**GIVEN, "writer": "loader", "writeId": "day 1"}).write_id == "day 1"


@pytest.mark.parametrize(
    ("options", "said"),
    [({"stream": "main/events"}, "recorded"), ({"maxRows": "5"}, "no option 'maxRows' here"), ({"dsn": ""}, "dsn")],
)
def test_what_cannot_be_written_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        WriteOptions.read({**GIVEN, **options})
