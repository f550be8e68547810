"""Records micro-batches so that each is applied exactly once: its effect and its end vectors commit together.

The ledger has a row for each query, with the vectors up to which the query's tables hold every fact. A batch is applied
only if it begins at these vectors. A batch that they cover already was applied before, and is skipped. So a process may
be killed at any time. Spark's checkpoint is not relied on: it serves a single run of a query.

Runs in the driver. All functions but ``ledger_vectors`` and ``read_offsets`` need an open transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import LedgerMismatch

__all__ = [
    "BatchOffsets",
    "Vectors",
    "covers",
    "hold_ledger",
    "ledger_vectors",
    "read_offsets",
    "set_ledger",
    "take_batch",
]

Vectors = dict[str, dict[str, int]]
"""``{stream: {writer: position}}``"""

_READ = "SELECT offsets::text FROM pipeline_batchledger WHERE query = %(query)s"
_FIRST = """
INSERT INTO pipeline_batchledger (query, batch_id, offsets) VALUES (%(query)s, -1, '{}') ON CONFLICT (query) DO NOTHING
"""
_ADVANCE = """
UPDATE pipeline_batchledger
SET batch_id = %(batch)s, offsets = %(offsets)s, batches = batches + 1, applied_at = clock_timestamp()
WHERE query = %(query)s
"""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """A micro-batch from Spark's log. Of each stream it holds the facts after ``start`` up to ``end``."""

    batch_id: int
    start: Vectors
    end: Vectors


def ledger_vectors(cursor: Any, query: str) -> Vectors:
    """Returns the vectors that the tables of a query have reached, or {} if it never ran. Needs no transaction."""
    cursor.execute(_READ, {"query": query})
    row = cursor.fetchone()
    return {} if row is None else json.loads(row[0])


def hold_ledger(cursor: Any, query: str) -> Vectors:
    """Returns the vectors that the tables of a query have reached, and locks the query's row.

    No batch of the query is applied until the transaction ends.
    """
    cursor.execute(_FIRST, {"query": query})
    cursor.execute(f"{_READ} FOR UPDATE", {"query": query})
    held: Vectors = json.loads(cursor.fetchone()[0])
    return held


def set_ledger(cursor: Any, query: str, vectors: Vectors) -> None:
    """Overwrites the vectors of a query. The next batch must begin there.

    Only for tables that store their position elsewhere too: the position of the feeds is the cursor of a named reader.
    """
    hold_ledger(cursor, query)
    cursor.execute(_ADVANCE, {"query": query, "batch": -1, "offsets": json.dumps(vectors, sort_keys=True)})


def take_batch(cursor: Any, query: str, offsets: BatchOffsets) -> bool:
    """Records that the batch is applied. Returns false if it was applied before.

    The caller writes the batch's effect in the same transaction. The ledger's row is locked, so batches of a query are
    applied one after another, even from several processes. Raises ``LedgerMismatch`` if the batch does not begin where
    the ledger ends.
    """
    # The ledger's row stays locked until the commit. Without the lock, two processes could both read 5, both find that batch
    # 5..8 begins there, and both add its effect.
    held = hold_ledger(cursor, query)
    if covers(held, offsets.end):
        return False
    if not (covers(held, offsets.start) and covers(offsets.start, held)):
        raise LedgerMismatch(
            f"Query {query}: batch {offsets.batch_id} begins at {offsets.start}, but its tables hold every fact up to {held}. "
            f"Another process wrote them, or the database was restored: start the query again, then it begins where they are."
        )
    after = {"query": query, "batch": offsets.batch_id, "offsets": json.dumps(offsets.end, sort_keys=True)}
    cursor.execute(_ADVANCE, after)
    return True


def covers(upper: Mapping[str, Mapping[str, int]], lower: Mapping[str, Mapping[str, int]]) -> bool:
    """Returns true if ``upper`` is at or above ``lower`` for every writer of every stream in ``lower``.

    A writer that ``upper`` lacks is at 0.
    """
    return all(
        upper.get(stream, {}).get(writer, 0) >= position
        for stream, vector in lower.items()
        for writer, position in vector.items()
    )


def read_offsets(checkpoint: Path, batch_id: int, streams: Sequence[str], first: Vectors) -> BatchOffsets:
    """Returns the start and end vectors of a batch from Spark's log, which is written before the batch runs.

    ``first`` are the vectors at which batch 0 begins.
    """
    start = first if batch_id == 0 else _logged(checkpoint, batch_id - 1, streams, first)
    return BatchOffsets(batch_id, start, _logged(checkpoint, batch_id, streams, first))


def _logged(checkpoint: Path, batch_id: int, streams: Sequence[str], first: Vectors) -> Vectors:
    """Returns the vectors of a batch from Spark's log, one for each stream.

    An entry of the log has a line with the version, a line with metadata, and a line for each source of the query. The
    line of a source that has not begun is "-", and its vector is the one in ``first``.
    """
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2:]
    found: Vectors = {}
    for stream, line in zip(streams, lines, strict=True):
        found[stream] = first.get(stream, {}) if line == "-" else _positions(json.loads(line))
    return found


def _positions(offset: Mapping[str, Any]) -> dict[str, int]:
    """Returns the positions in an offset. Its other entries, such as the epoch of the database, are skipped."""
    return {writer: position for writer, position in offset.items() if isinstance(position, int)}
