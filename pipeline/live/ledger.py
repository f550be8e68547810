"""Records micro-batches so that each is applied exactly once: its changes and its end vectors commit together.

The ledger has a row for each query, with one vector for each stream. The query's tables include every fact up to these
vectors. A batch is applied only if it begins at these vectors. If a batch ends at or below these vectors, the batch was
applied before, and is skipped. So a process may be killed at any time. Spark's checkpoint is used only within one run
of a query. The positions are also the cursors of a named reader (``pipeline.live.named_table``), which move with them.

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
    "record_batch",
    "set_ledger",
]

Vectors = dict[str, dict[str, int]]
"""``{stream: {writer: position}}``"""

_READ = "SELECT offsets::text FROM pipeline_batchledger WHERE query = %(query)s"
_FIRST = """
INSERT INTO pipeline_batchledger (query, batch_id, offsets) VALUES (%(query)s, -1, '{}') ON CONFLICT (query) DO NOTHING
"""
_SET = "UPDATE pipeline_batchledger SET batch_id = -1, offsets = %(offsets)s WHERE query = %(query)s"
_ADVANCE = """
UPDATE pipeline_batchledger
SET batch_id = %(batch)s, offsets = %(offsets)s, batches = batches + 1, applied_at = clock_timestamp()
WHERE query = %(query)s
"""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """The bounds of a micro-batch, from Spark's log. The batch has the facts of each stream after ``start`` up to ``end``."""

    batch_id: int
    start: Vectors
    end: Vectors


def ledger_vectors(cursor: Any, query: str) -> Vectors:
    """Returns the vectors that the tables of a query have reached, or {} if the query never ran. Needs no transaction."""
    cursor.execute(_READ, {"query": query})
    row = cursor.fetchone()
    return {} if row is None else json.loads(row[0])


def hold_ledger(cursor: Any, query: str) -> Vectors:
    """Returns the vectors that the tables of a query have reached, and locks the query's row in the ledger.

    No batch of the query is applied until the transaction ends.
    """
    cursor.execute(_FIRST, {"query": query})
    cursor.execute(f"{_READ} FOR UPDATE", {"query": query})
    held: Vectors = json.loads(cursor.fetchone()[0])
    return held


def set_ledger(cursor: Any, query: str, vectors: Vectors) -> None:
    """Sets the vectors of a query in the ledger to the position of its reader's cursors, when the query begins.

    The next batch of the query must begin at these vectors. This is no batch: it is not counted, and has no time.
    """
    hold_ledger(cursor, query)
    cursor.execute(_SET, {"query": query, "offsets": json.dumps(vectors, sort_keys=True)})


def record_batch(cursor: Any, query: str, offsets: BatchOffsets) -> bool:
    """Records in the ledger that the batch is applied. Returns false if the batch was applied before.

    The caller changes the query's tables in the same transaction. The query's row in the ledger is locked. So batches
    of a query are applied one after another, even by several processes. Raises ``LedgerMismatch`` if the batch does not
    begin at the vectors in the ledger.
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
    """Returns true if every position in ``lower`` is at most the position of the same stream and writer in ``upper``.

    If ``upper`` lacks a writer, the position of this writer in ``upper`` counts as 0.
    """
    return all(
        upper.get(stream, {}).get(writer, 0) >= position
        for stream, vector in lower.items()
        for writer, position in vector.items()
    )


def read_offsets(checkpoint: Path, batch_id: int, streams: Sequence[str], first: Vectors) -> BatchOffsets:
    """Returns the start and end vectors of a batch from Spark's log. Spark writes the log before it runs the batch.

    ``first`` are the vectors at which batch 0 begins.
    """
    start = first if batch_id == 0 else _logged(checkpoint, batch_id - 1, streams, first)
    return BatchOffsets(batch_id, start, _logged(checkpoint, batch_id, streams, first))


def _logged(checkpoint: Path, batch_id: int, streams: Sequence[str], first: Vectors) -> Vectors:
    """Returns the vectors at which a batch ends, from Spark's log. There is one vector for each stream.

    An entry of the log has a line with the version, a line with metadata, and a line for each source of the query. If a
    source has not begun, its line is "-". Then the vector in ``first`` is used for its stream.
    """
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2:]
    found: Vectors = {}
    for stream, line in zip(streams, lines, strict=True):
        if line == "-":
            found[stream] = first.get(stream, {})
        else:  # other entries of an offset, such as the database's epoch, are texts
            found[stream] = {writer: at for writer, at in json.loads(line).items() if isinstance(at, int)}
    return found
