"""The schemas of frames: the same for Spark and for Arrow, and fit for the tables and the parser."""

from __future__ import annotations

import msgspec
import pytest
from django.apps import apps
from pyspark.sql.pandas.types import from_arrow_schema

from events.format.parsing import ParsedEvent
from pipeline.frames.schemas import EVENTS, FRAMES, ROOM_FRAMES

TABLES = {model._meta.db_table: model for model in apps.get_models()}
#: Columns of tables that no event determines: the site gives them when rows are stored.
GIVEN_BY_THE_SITE = {"id", "instance_name", "received_at", "censored_at", "content_generation"}
#: Column of a table -> the column of its frame that stands for it.
NUMBERED = {"prev_group": "prev_number", "chain": "chain_number", "state_group": "group_number"}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_spark_and_arrow_have_the_same_columns(frame):
    own = [(field.name, field.dataType.simpleString()) for field in frame.spark()]
    assert own == [(field.name, field.dataType.simpleString()) for field in from_arrow_schema(frame.arrow())]
    assert own == [(name, column.type) for name, column in frame.columns.items()]


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_every_column_says_what_it_is_and_the_key_is_among_them(frame):
    assert all(column.about for column in frame.columns.values()) and set(frame.key) <= set(frame.names)


@pytest.mark.parametrize("frame", ROOM_FRAMES.values(), ids=ROOM_FRAMES)
def test_a_frame_of_rooms_has_the_columns_of_its_table(frame):
    columns = {field.column for field in TABLES[frame.table]._meta.concrete_fields if field.column}
    wanted = {NUMBERED.get(name, name) for name in columns - GIVEN_BY_THE_SITE}
    assert wanted <= set(frame.names) and "room_id" in frame.names


def test_events_have_the_fields_of_the_parser():
    fields = [field.name for field in msgspec.structs.fields(ParsedEvent)]
    assert sorted(EVENTS.names) == sorted(["source", "line", *fields])
