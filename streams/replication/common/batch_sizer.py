"""Bounds the memory of reading missed facts from the tables, for followers that are far behind."""

from __future__ import annotations

from collections.abc import Sequence

from streams.replication.protocol.ordering import FollowedRow
from streams.replication.protocol.row_size import row_size


class BatchSizer:
    """The number of rows to read at a time. It adapts to the size of rows, so that a batch has about ``batch_bytes``."""

    def __init__(self, batch_bytes: int = 8 * 1024 * 1024, first_rows: int = 1_000) -> None:
        self._batch_bytes = batch_bytes
        self._rows = first_rows

    def limit(self, most: int) -> int:
        return min(self._rows, most)

    def learn(self, rows: Sequence[FollowedRow]) -> None:
        """Adapts the number of rows to the size of ``rows``, which is estimated from a sample.

        The number grows at most fourfold per call, and is never below 10.
        """
        if not rows:
            return
        sample = rows[:: max(1, len(rows) // 32)]
        each = sum(row_size(row.row) for row in sample) // len(sample) + 1
        self._rows = max(10, min(self._batch_bytes // each, self._rows * 4))
