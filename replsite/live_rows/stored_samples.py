"""Loads the site's history of the last minutes, so that the small charts of a new process are complete at once.

The history is read from ``streams_sample`` with a Django cursor. If no serving process has written samples, it is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from replsite.live_rows.readers import ReaderRow
from replsite.status.series import STEP_SECONDS
from replsite.status.trends import History
from streams.runtime.text import plain_label

_SAMPLES = """
SELECT stream, reader, extract(epoch FROM at)::float8, position, waiting FROM streams_sample
WHERE step_seconds = %(step)s AND at > clock_timestamp() - interval '5 minutes' AND stream <> '' ORDER BY at
"""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A sample of a stream (empty ``reader``), or of a reader on it, at a moment in seconds since 1970."""

    stream: str
    reader: str
    at: float
    position: int
    waiting: int


def read_samples(cursor: Any) -> list[SampleRow]:
    """Returns the samples of the last five minutes in order of time."""
    cursor.execute(_SAMPLES, {"step": STEP_SECONDS})
    return [SampleRow(*row) for row in cursor.fetchall()]


def warm(history: History, samples: Iterable[SampleRow], readers: Sequence[ReaderRow]) -> None:
    """Adds stored samples to the history: the lag of readers, and the facts per second of streams.

    The facts per second are computed from the growth of a stream's position. Other processes stored the samples.
    """
    found: dict[tuple[str, str], list[SampleRow]] = {}
    for sample in samples:
        found.setdefault((sample.stream, sample.reader), []).append(sample)
    for (stream, reader), rows in found.items():
        if not reader:
            grown = [(now.at, max(now.position - was.position, 0) / (now.at - was.at)) for was, now in pairwise(rows)]
            history.facts.seed(stream, grown)
    # Samples are stored under plain labels, so the name of each reader is mapped to its label as in replsite.history.samples.
    names: set[str] = set()
    for row in readers:
        label = plain_label(row.name, names)
        names.add(label)
        for stream in row.positions:
            values = [(sample.at, float(sample.waiting)) for sample in found.get((stream, label), ())]
            history.lag.seed((row.key, stream), values)
