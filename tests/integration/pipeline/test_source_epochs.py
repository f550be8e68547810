"""The Spark source keeps the epoch in its offsets: a checkpoint of before a restore is refused. Without a Spark session."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipeline.source.data_source import ReplsiteSource
from pipeline.source.offsets import Bound
from streams import epochs, registry
from streams.db import driver
from streams.errors import EpochChanged
from tests.support.writing import append, session, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def reader():
    """A planning reader on the stream ``caches``."""
    source = ReplsiteSource({"dsn": driver.dsn(), "stream": "caches", "startingOffsets": "latest"})
    found: Any = source.streamReader(source.schema())
    yield found
    found.stop()


def written() -> int:
    number = append()[0]
    wait_for_linear(number)
    return number


def test_offset_carries_the_epoch_beside_the_vector(reader):
    number = written()
    with session() as cursor:
        epoch = epochs.current_epoch(cursor)
    assert reader.initialOffset() == {"master": number, "in epoch": epoch}


def test_batches_go_on_within_the_epoch(reader):
    written()
    start = reader.initialOffset()
    number = written()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["master"] == number
    assert [part.value.bounds for part in reader.partitions(start, end)] == [
        (Bound(("master",), start["master"], number),)
    ]


def test_checkpoint_of_before_a_restore_is_refused_by_name(reader):
    written()
    start = reader.initialOffset()
    with session() as cursor:
        epochs.begin_epoch(cursor, "put back")
    with pytest.raises(EpochChanged, match="Remove the checkpoint"):
        reader.latestOffset(start, ReadAllAvailable())


@pytest.fixture
def set_back():
    """``set_back(5)``: the stream's sequence has given out 5, as after a restore of it alone. Put right again at the end."""
    name = registry.get("caches").declaration.sequence
    with session() as cursor:
        last = registry.get("caches").sequence_value(cursor)

        def to(value: int) -> None:
            nonlocal last
            last = max(last, registry.get("caches").sequence_value(cursor))
            cursor.execute("SELECT setval(%s, %s)", [name, value])

        yield to
        cursor.execute("SELECT setval(%s, %s)", [name, last])


@pytest.mark.parametrize("with_epoch", [True, False])
def test_checkpoint_above_the_sequence_is_refused_by_name(reader, set_back, with_epoch):
    number = append(count=3)[-1]
    wait_for_linear(number)
    start, end = {**reader.initialOffset(), "master": number - 2}, reader.initialOffset()
    if not with_epoch:
        start, end = {"master": number - 2}, {"master": number}
    set_back(number - 1)
    assert reader.latestOffset(start, ReadAllAvailable())["master"] == number - 2, "nothing above is believed"
    for ask in (lambda: reader.latestOffset(end, ReadAllAvailable()), lambda: reader.partitions(start, end)):
        with pytest.raises(
            EpochChanged, match=f"position {number} of writer master on stream caches.*given out {number - 1}"
        ):
            ask()


def test_query_may_not_begin_above_the_sequence():
    number = written()
    options = {"dsn": driver.dsn(), "stream": "caches", "startingOffsets": f'{{"master": {number + 10}}}'}
    source = ReplsiteSource(options)
    found: Any = source.streamReader(source.schema())
    try:
        with pytest.raises(EpochChanged, match="startingOffsets is of another database"):
            found.latestOffset(found.initialOffset(), ReadAllAvailable())
    finally:
        found.stop()


def test_checkpoint_of_an_earlier_version_goes_on(reader):
    number = written()
    assert reader.latestOffset({"master": 1}, ReadAllAvailable())["master"] == number
