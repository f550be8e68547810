"""Builds the figures at the top of the live page (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from replsite.live_rows.cells import NOTHING, Cell, Tile, per_second, rounded, summed, text_cell
from replsite.live_rows.readers import ReaderRow
from replsite.live_rows.snapshot import Snapshot
from replsite.live_rows.storage import StorageView
from replsite.live_rows.streams import WriterRow
from replsite.status.words import ExpectedWord, Severity, Verdict, WriterWord
from streams.core.positions import RETIRED
from streams.runtime.amounts import byte_size, count, counted, duration


def summary_tiles(snapshot: Snapshot) -> list[Tile]:
    """Returns tiles for writers, their facts, open appends, readers, the highest lag, and the size of the database.

    Retired writers and closed readers are left out. If the snapshot has no figures of storage, there is no tile for the
    database.
    """
    writers = [writer for stream in snapshot.streams for writer in stream.writers if writer.state != RETIRED]
    readers = [reader for reader in snapshot.readers if reader.closed_at is None]
    tiles = [
        _writers(writers, [e.status for stream in snapshot.streams for e in stream.expected]),
        _facts(snapshot, writers),
        _open(snapshot),
        _readers(readers),
        _lag(readers),
    ]
    return [*tiles, _storage(snapshot.storage)] if snapshot.storage is not None else tiles


def _tile(title: str, cell: Cell, verdicts: Iterable[Verdict] = ()) -> Tile:
    severity = max((verdict.severity for verdict in verdicts), default=Severity.FINE)
    return {"title": title, "severity": severity.name.lower(), "cell": cell}


def _writers(writers: list[WriterRow], expected: list[Verdict]) -> Tile:
    names = {writer.writer for writer in writers}
    writing = {writer.writer for writer in writers if writer.status.word == WriterWord.WRITING}
    missing = sum(verdict.word == ExpectedWord.MISSING for verdict in expected)
    text = f"{count(len(writing))} writing" + (f", {count(missing)} missing" if missing else "")
    return _tile("Writers", text_cell(count(len(names)), text), [*(w.status for w in writers), *expected])


def _facts(snapshot: Snapshot, writers: list[WriterRow]) -> Tile:
    speed = sum(writer.facts_per_second or 0.0 for writer in writers)
    cell = text_cell(per_second(speed) if speed else NOTHING, f"in {counted(len(snapshot.streams), 'stream')}")
    if series := [stream.recent for stream in snapshot.streams if stream.recent]:
        cell["series"] = rounded(summed(series))
    return _tile("Facts", cell)


def _open(snapshot: Snapshot) -> Tile:
    held = [holder for stream in snapshot.streams for holder in stream.holders]
    oldest = min((holder.since for holder in held if holder.since), default=None)
    cell = text_cell(count(len(held)), "oldest", oldest) if held else text_cell("0", "nothing waits")
    return _tile("Open appends", cell, [holder.status for holder in held])


def _readers(readers: list[ReaderRow]) -> Tile:
    bad = sum(reader.status.severity >= Severity.WARNING for reader in readers)
    text = f"{counted(bad, 'reader')} to look at" if bad else "all are fine"
    return _tile(
        "Readers",
        text_cell(count(sum(reader.runs for reader in readers)), text if readers else "no followers"),
        (r.status for r in readers),
    )


def _lag(readers: list[ReaderRow]) -> Tile:
    worst = max(readers, key=lambda reader: (reader.lag_seconds, reader.lag_facts), default=None)
    if worst is None or not worst.lag_facts:
        return _tile("Highest lag", text_cell("0 s", "everything is read"))
    cell = text_cell(duration(worst.lag_seconds), f"{counted(worst.lag_facts, 'fact')} of {worst.name:.40}")
    return _tile("Highest lag", cell, [worst.status])


def _storage(storage: StorageView) -> Tile:
    grown = storage.database.grown_bytes
    sign = "-" if grown is not None and grown < 0 else "+"
    text = f"{sign}{byte_size(abs(grown))} in a day" if grown is not None else "with indexes"
    return _tile("Database", text_cell(byte_size(storage.database.size_bytes), text))
