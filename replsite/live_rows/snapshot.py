"""The snapshot: every row that an operator sees, of one moment (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from replsite.live_rows.jobs import JobsView
from replsite.live_rows.readers import ReaderRow
from replsite.live_rows.storage import StorageView
from replsite.live_rows.streams import StreamRow
from replsite.live_rows.workers import WorkersView
from replsite.status.words import Health


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole site at one moment of the database's clock."""

    as_of: datetime
    version: str
    health: Health
    streams: tuple[StreamRow, ...]
    readers: tuple[ReaderRow, ...]
    workers: WorkersView = field(default_factory=WorkersView)
    jobs: JobsView = field(default_factory=JobsView)
    storage: StorageView | None = None

    def stream(self, name: str) -> StreamRow:
        return {stream.name: stream for stream in self.streams}[name]
