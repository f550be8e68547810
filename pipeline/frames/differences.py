"""Compares two sets of frames of rooms, and returns the differences as a frame. Needs no Django.

    with stored_rooms(spark, dsn) as stored:
        differences(work_out_rooms(read_events(spark, sources)), stored).show()

One shuffle brings together the computed and the stored rows with the same key, for all frames. Then the columns of
these rows are compared. To check the rooms of one database against their own events, use ``StoredRooms.damage``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pipeline.frames.room_frames import RoomFrames
from pipeline.frames.schemas import ROOM_FRAMES, Column, FrameSchema

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

__all__ = ["DIFFERENCES", "differences"]

DIFFERENCES = FrameSchema(
    "differences",
    "Values of rows of rooms that differ: a row for each column, or one for a row that only one side has.",
    {
        "room_id": Column("string", False, "the room"),
        "frame": Column("string", False, "the frame of rooms"),
        "key": Column("string", False, "JSON object with the other columns of the row's key"),
        "column": Column("string", True, "the column; null: one side has no such row"),
        "stored": Column("string", True, "the stored value as text; of a row: its other columns as JSON; null: none"),
        "computed": Column("string", True, "the computed value, in the same form"),
    },
    ("room_id", "frame", "key", "column"),
)
"""The columns of the result of a comparison."""

#: Columns that are ignored: positions of a site, and places in a source. Rows are compared by numbers within the room.
_IGNORED = {"stream_ordering", "first", "last", "source", "line"}


def differences(computed: RoomFrames, stored: RoomFrames) -> DataFrame:
    """Returns the differences between two sets of frames of the same rooms, with the columns of ``DIFFERENCES``.

    All frames are compared row by row. Events and state groups are identified by their numbers within the room, not by
    the IDs of one database. Stream orderings are ignored. Use this function to compare two databases that imported the
    same rooms, or an import with its source.
    """
    compared = {name: _Compared.of(schema) for name, schema in ROOM_FRAMES.items()}
    rows = _rows_of(compared, computed, is_stored=False).unionByName(_rows_of(compared, stored, is_stored=True))
    return _differing(compared, rows)


@dataclass(frozen=True, slots=True)
class _Compared:
    """The columns of a frame by which rows are compared. ``key`` identifies a row of a room, and ``values`` are compared.

    The column ``room_id`` is neither in ``key`` nor in ``values``.
    """

    key: Sequence[str]
    values: Sequence[str]

    @classmethod
    def of(cls, schema: FrameSchema) -> _Compared:
        names = [name for name in schema.names if name != "room_id" and name not in _IGNORED]
        key = [name for name in names if name in schema.key]
        return cls(key, [name for name in names if name not in key])


def _differing(compared: Mapping[str, _Compared], rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - drivers only

    # Lists, because some tables may hold a row twice.
    listed = {
        side: f.array_sort(f.collect_list(f.when(f.col("is_stored") == is_stored, f.col("values"))))
        for side, is_stored in (("stored", True), ("computed", False))
    }
    differing = (
        rows.groupBy("room_id", "frame", "key")
        .agg(*(column.alias(side) for side, column in listed.items()))
        .where(f.col("stored") != f.col("computed"))
        .select("room_id", "frame", "key", f.explode(f.arrays_zip("stored", "computed")).alias("pair"))
        .select("room_id", "frame", "key", "pair.stored", "pair.computed")
    )
    names = f.create_map(
        *(item for name, columns in compared.items() for item in (f.lit(name), _texts(map(f.lit, columns.values))))
    )
    return (
        differing.withColumn("names", names[f.col("frame")])
        .select("room_id", "frame", "key", f.explode(_items()).alias("item"))
        .select("room_id", "frame", "key", "item.column", "item.stored", "item.computed")
    )


def _rows_of(compared: Mapping[str, _Compared], rooms: RoomFrames, *, is_stored: bool) -> DataFrame:
    """Returns the rows of all frames in one DataFrame.

    Its columns are the room, the name of the frame, the row's key as JSON, the row's other values as texts, and
    ``is_stored``.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - drivers only

    def rows(name: str, columns: _Compared) -> DataFrame:
        schema = ROOM_FRAMES[name]
        key = f.to_json(f.struct(*columns.key), {"ignoreNullFields": "false"}) if columns.key else f.lit("{}")
        values = _texts(
            f.to_json(column) if schema.columns[column].type.startswith("array") else f.col(column).cast("string")
            for column in columns.values
        )
        frame: DataFrame = getattr(rooms, name)
        return frame.select(
            "room_id",
            f.lit(name).alias("frame"),
            key.alias("key"),
            values.alias("values"),
            f.lit(is_stored).alias("is_stored"),
        )

    return reduce(lambda above, below: above.union(below), (rows(*item) for item in compared.items()))


def _texts(columns: Iterable[SparkColumn]) -> SparkColumn:
    from pyspark.sql import functions as f  # noqa: PLC0415 - drivers only

    return f.array(*columns).cast("array<string>")


def _items() -> SparkColumn:
    """Returns the Spark expression for the differences between a stored row and a computed row.

    The value of the expression is an array of (column, stored value, computed value).
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - drivers only

    def item(column: SparkColumn, stored: SparkColumn, computed: SparkColumn) -> SparkColumn:
        return f.struct(column.alias("column"), stored.alias("stored"), computed.alias("computed"))

    def whole(side: str) -> SparkColumn:
        row = f.to_json(f.map_from_arrays("names", side), {"ignoreNullFields": "false"})
        return f.when(f.col(side).isNotNull(), row)

    alone = item(f.lit(None).cast("string"), whole("stored"), whole("computed"))
    zipped = f.transform(
        f.arrays_zip("names", "stored", "computed"),
        lambda triple: item(triple["names"], triple["stored"], triple["computed"]),
    )
    each = f.filter(zipped, lambda pair: ~pair["stored"].eqNullSafe(pair["computed"]))
    return f.when(f.col("stored").isNotNull() & f.col("computed").isNotNull(), each).otherwise(f.array(alone))
