"""Counts the commands that this process sends and receives. The counts are added to a database table later.

Commands are counted by command word and by the name of the client or server at the other end. A bounded number of names
have counts of their own. All other names are counted together as ``other``. A process first reads the names in the
table, so that all processes count the same names. ``received_rdata`` counts the RDATA commands that followers of this
process receive. Any thread may add to these counts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from streams.replication.common.worker_sql import add_counts, counted_names
from streams.runtime.text import OTHER, plain_label


class CommandCounts:
    """The counts of commands, by command word and name of the other end. A key of the counters is ``"WORD name"``."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._known: set[str] = set()

    def know(self, names: Iterable[str]) -> None:
        """Marks names as known, because the table of counts has rows for these names. `label` returns a known name unchanged."""
        self._known.update(names)

    def label(self, name: str) -> str:
        """Returns the label under which a client or server with the name ``name`` is counted: this name, or ``other``."""
        label = plain_label(name, self._known)
        if label != OTHER:
            self._known.add(label)
        return label

    def add_sent(self, label: str, words: Counter[str]) -> None:
        """Adds the commands that were sent over one connection. ``words`` is ``{command word: number of commands}``."""
        for word, number in words.items():
            self.sent[f"{word} {label}"] += number


def read_names(cursor: Any) -> set[str]:
    """Returns the names of clients and servers in the table of counts."""
    return {name.partition(" ")[2] for name in counted_names(cursor, ["received", "sent"])}


class PendingCounts:
    """Counts that were not added to the database table yet. Any thread may call the methods."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number

    def store(self, cursor: Any) -> None:
        """Adds the counts to the database table, and sets them to 0. After an error, keeps the counts for the next call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        # The lock is not held during the write, so that `add`, called on event loops, never waits for the database.
        try:
            add_counts(cursor, [{"kind": self._kind, "name": name, "total": total} for name, total in counts.items()])
        except BaseException:
            with self._lock:
                self._counts.update(counts)
            raise


#: Stream -> number of RDATA commands that followers of this process received.
received_rdata = PendingCounts("rdata")
