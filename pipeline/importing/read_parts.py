"""Reads the parts of an import's sources in tasks. Runs in Spark's executors. Needs no Django.

A line that is no valid event goes to the quarantine with a reason. No content of a source makes the job fail. The job
fails only if a source cannot be read, or changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline.frames.read_events import Reading, part_batches
from pipeline.frames.schemas import EVENTS
from pipeline.frames.sources.inputs import Input, check_unchanged
from pipeline.importing.staging_tables import count_lines, finish_part, staging_connection, tables
from pipeline.loading.copy_rows import copy_batches

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ReadWork", "SiteVersions", "read_part_once"]


@dataclass(frozen=True, slots=True)
class ReadWork:
    """The parameters of reading, the same for all tasks of a job. ``reading.rules`` has the versions that the input announces."""

    job: int
    dsn: str = field(repr=False)
    reading: Reading
    inputs: Sequence[Input] = field(repr=False)


class SiteVersions(Mapping[str, str]):
    """A lazy map from room IDs to room versions.

    If the site has the room, the version is that of the site's room. Otherwise it is the version that the input
    announces. A room is looked up in the database when the first of its events without a version is parsed. Length and
    iteration cover only rooms that were looked up.
    """

    def __init__(self, cursor: Any, announced: Mapping[str, str]) -> None:
        self._cursor, self._announced = cursor, announced
        self._asked: dict[str, str | None] = {}

    def __getitem__(self, room_id: str) -> str:
        if room_id not in self._asked and "\0" not in room_id:
            self._cursor.execute("SELECT room_version FROM events_room WHERE room_id = %s", [room_id])
            row = self._cursor.fetchone()
            self._asked[room_id] = self._announced.get(room_id) if row is None else row[0]
        found = self._asked.get(room_id)
        if found is None:
            raise KeyError(room_id)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(room_id for room_id, version in self._asked.items() if version is not None)

    def __len__(self) -> int:
        return sum(version is not None for version in self._asked.values())

    def __bool__(self) -> bool:
        return True  # len() is 0 until the first lookup, but the map is not empty


def read_part_once(work: ReadWork, number: int) -> Iterator[pa.RecordBatch]:
    """Yields the events of part ``number``, with the columns of ``EVENTS``. Raises ``SourceChanged`` after the last one.

    Stores the part's broken lines, and the number of its lines. If they are stored already, they are not stored again.
    """
    reading = work.reading
    with staging_connection(work.dsn) as connection, connection.cursor() as cursor:
        is_first, lines = finish_part(cursor, work.job, number), 0
        versions = SiteVersions(cursor, reading.rules.versions)
        for batch in part_batches(replace(reading, rules=replace(reading.rules, versions=versions)), number):
            events = batch.slice(0, batch.column("reason").null_count)  # they come before the broken lines
            if is_first and events.num_rows < batch.num_rows:
                broken = batch.slice(events.num_rows).select(["source", "line", "reason", "detail", "head"])
                copy_batches(cursor, tables(work.job)["broken"], [broken])
            lines += batch.num_rows
            yield events.select(EVENTS.names)
        # Packs are loaded after all parts were read. So nothing of a source that changed meanwhile is loaded.
        check_unchanged([work.inputs[reading.parts[number].file]])
        if is_first:
            count_lines(cursor, work.job, number, lines)
