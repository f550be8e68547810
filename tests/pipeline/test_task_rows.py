"""Rows that Spark keeps are read once, whatever is made of them."""

from __future__ import annotations

import pyarrow as pa

from pipeline.frames.task_rows import TaskRows, as_read, mapped


def test_persisted_rows_are_read_once(spark, tmp_path):
    reads = tmp_path / "reads"

    def read(number, columns):
        with reads.open("a") as file:
            file.write(f"{number}\n")
        whole = pa.RecordBatch.from_pydict({"a": [number, number + 10], "b": ["x", None]})
        yield whole.slice(0, 0).select(list(columns))
        yield whole.select(list(columns))

    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    rows = TaskRows(spark, 3, read).persist(schema)
    found = mapped(rows, ("b", "a"), as_read, "b string, a bigint").collect()
    again = mapped(rows, ("a",), as_read, "a bigint").collect()
    rows.unpersist()
    assert sorted(a for _, a in found) == sorted(a for (a,) in again) == [0, 1, 2, 10, 11, 12]
    assert {a: b for b, a in found}[11] is None
    assert sorted(reads.read_text().split()) == ["0", "1", "2"]
