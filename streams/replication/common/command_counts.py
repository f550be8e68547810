"""Counts of the commands of this process, and the part of them that is not added to the table of counts yet.

Connections count commands by word and by the name that the other side gives itself. Only plain names are counted, and a
bounded number of them; the rest is ``other``. Names that the table has are known first, so that all processes use the
same ones. ``received_rdata`` counts for the followers of this process, on any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from streams.replication.common.worker_sql import add_counts, counted_names
from streams.runtime.text import OTHER, plain_label

__all__ = ["CommandCounts", "PendingCounts", "read_names", "received_rdata"]


class CommandCounts:
    """Commands by word and name of the other side. The keys of ``received`` and ``sent`` are those of the table."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._known: set[str] = set()

    def know(self, names: Iterable[str]) -> None:
        """Adds names that the table has."""
        self._known.update(names)

    def label(self, name: str) -> str:
        """Returns the label under which a client or server of that name is counted: the name, or ``other``."""
        label = plain_label(name, self._known)
        if label != OTHER:
            self._known.add(label)
        return label

    def add_sent(self, label: str, words: Counter[str]) -> None:
        """Adds commands that one connection sent."""
        for word, number in words.items():
            self.sent[f"{word} {label}"] += number


def read_names(cursor: Any) -> set[str]:
    """Returns the names that the table has."""
    return {name.partition(" ")[2] for name in counted_names(cursor, ["received", "sent"])}


class PendingCounts:
    """Counts that are not added to the table yet. May be used by any thread."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, number: int = 1) -> None:
        """Adds ``number`` to the count of ``name``."""
        with self._lock:
            self._counts[name] += number

    def store(self, cursor: Any) -> None:
        """Adds the counts to the table, each once. If that raises, they are kept for the next call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        # The lock is not held during the write, so that `add`, called on event loops, never waits for the database.
        try:
            add_counts(cursor, [{"kind": self._kind, "name": name, "total": total} for name, total in counts.items()])
        except BaseException:
            with self._lock:
                self._counts.update(counts)
            raise


#: Stream -> RDATA commands that followers of this process received.
received_rdata = PendingCounts("rdata")
