"""What a process counts on the wire, and what of it the table of counts has not been told yet.

Connections count commands by their word and by the name that the other side gives itself: plain names only and a bounded
number of them, the rest is ``other``. The names that the table knows come first, so that all processes take the same ones.
``received_rdata`` is of the followers of this process, on any of its threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from streams.replication.common.worker_sql import add_counts, counted_names
from streams.runtime.text import OTHER, plain_label

__all__ = ["CommandCounts", "Untold", "read_names", "received_rdata"]


class CommandCounts:
    """Commands by word and name of the peer: ``received`` and ``sent``, as they stand in the table."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._known: set[str] = set()

    def know(self, names: Iterable[str]) -> None:
        """Names that are counted already."""
        self._known.update(names)

    def label(self, name: str) -> str:
        """What a peer of that name is counted as."""
        label = plain_label(name, self._known)
        if label != OTHER:
            self._known.add(label)
        return label

    def add_sent(self, label: str, words: Counter[str]) -> None:
        """Commands that one connection sent."""
        for word, number in words.items():
            self.sent[f"{word} {label}"] += number


def read_names(cursor: Any) -> set[str]:
    """The names that the table knows."""
    return {name.partition(" ")[2] for name in counted_names(cursor, ["received", "sent"])}


class Untold:
    """Counts that wait to be added to the table; may be used by any thread."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, number: int = 1) -> None:
        """So many more."""
        with self._lock:
            self._counts[name] += number

    def store(self, cursor: Any) -> None:
        """Add them to the table, once; those that could not be added wait for the next time."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        try:
            add_counts(cursor, [{"kind": self._kind, "name": name, "total": total} for name, total in counts.items()])
        except BaseException:
            with self._lock:
                self._counts.update(counts)
            raise


#: Stream -> RDATA commands that followers of this process received.
received_rdata = Untold("rdata")
