"""A query from a stream into Parquet, in a process that knows a connection string and no Django: to be killed.

    python -m tests.pipeline.query_driver FOLDER [end]     (the connection string comes on standard input)

Runs until it is killed; with ``end`` until everything that is there is read, then prints how many rows the files hold, and of
how many facts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.source.data_source import register
from pipeline.spark.session import spark_session

MAX_ROWS = 10
ROWS_AT_THE_END = 5_000
READER = "parquet files"


def facts_to_parquet(spark, dsn: str, folder: Path, max_rows: int = MAX_ROWS):
    """The query, not yet started; its checkpoint and its files lie in the folder."""
    options = {"dsn": dsn, "stream": "caches", "maxRows": max_rows, "readerName": READER}
    facts = spark.readStream.format("replsite").options(**options).load()
    sink = facts.writeStream.format("parquet").option("path", str(folder / "facts"))
    return sink.option("checkpointLocation", str(folder / "checkpoint"))


def main() -> None:
    folder, dsn = Path(sys.argv[1]), sys.stdin.read()
    with spark_session("query", folder=folder / "spark") as spark:
        register(spark)
        ends = sys.argv[2:] == ["end"]
        sink = facts_to_parquet(spark, dsn, folder, ROWS_AT_THE_END if ends else MAX_ROWS)
        if not ends:
            query = sink.start()
            assert "django" not in sys.modules
            query.awaitTermination()
        sink.trigger(availableNow=True).start().awaitTermination()
        stored = spark.read.parquet(str(folder / "facts")).select("writer", "token")
        sys.stdout.write(f"rows {stored.count()} facts {stored.distinct().count()}\n")


if __name__ == "__main__":
    main()
