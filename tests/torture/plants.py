"""Faults planted into a writer process, to see that the torture notices them.

Each breaks one rule that all else rests on and makes the moment wide in which it matters; production code has no
switch for any of them. `plant` is called in the process before its first append, and fails when the place it wants
to change is not there any more: a plant that changes nothing would prove nothing.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["PLANTS", "plant"]


def _announce_before_commit() -> None:
    """Complete what the transaction reserved, let everybody hear of it, and only then commit."""
    from streams.writing.transaction import OpenTransaction
    from tests.torture import writer

    records: dict[int, list[OpenTransaction]] = {}
    own = _existing(OpenTransaction, "own")

    def noted(self: OpenTransaction, *arguments: Any) -> None:
        own(self, *arguments)
        records.setdefault(threading.get_ident(), []).append(self)

    def complete_early(connection: Any) -> None:
        for record in records.pop(threading.get_ident(), []):
            record.end(written=True)
        time.sleep(0.2)

    _put(OpenTransaction, "own", noted)
    _put(writer, "before_commit", complete_early)


def _skip_fetching() -> None:
    """Forget that IDs are being fetched: the position passes those that the sequence has given out and nobody knows yet."""
    from streams.core.tracker import Fetch, PositionTracker

    end_fetch, settle = _existing(PositionTracker, "end_fetch"), _existing(PositionTracker, "settle")
    _existing(PositionTracker, "begin_fetch")

    def begin_fetch(self: PositionTracker, count: int = 1, begun_at: float = 0.0) -> Fetch:
        return Fetch(self._max_allocated_seen, count, begun_at)

    calls = itertools.count()

    def late_end_fetch(self: PositionTracker, fetch: Fetch, ids: Any) -> Any:
        if next(calls) % 2:  # the other half may overtake
            time.sleep(0.2)  # between the sequence's answer and our knowing of it
        return listed(end_fetch, self, fetch, ids)

    def listed(work: Callable[..., Any], tracker: PositionTracker, fetch: Fetch, ids: Any) -> Any:
        with tracker._lock:
            tracker._fetching.append(fetch)  # only now, so that it can be taken out
        return work(tracker, fetch, ids)

    _put(PositionTracker, "begin_fetch", begin_fetch)
    _put(PositionTracker, "end_fetch", late_end_fetch)
    _put(PositionTracker, "settle", lambda tracker, fetch, ids: listed(settle, tracker, fetch, ids))


def _late_writer_row() -> None:
    """Enter a stream without a row in the table of positions, and add it half a second after the first reservations."""
    from streams.writing import writer as writers
    from tests.torture import writer

    store_entry = _existing(writers.leases, "store_entry")
    entering = threading.local()
    start_on = _existing(writers.WriterProcess, "_start_on")

    def note(self: Any, cursor: Any, stream: Any) -> Any:
        entering.process = self
        return start_on(self, cursor, stream)

    def store_late(cursor: Any, stream: Any, name: str, position: int) -> None:
        threading.Thread(target=_store_after, args=(entering.process, 0.5, stream, name), daemon=True).start()

    def _store_after(process: Any, seconds: float, stream: Any, name: str) -> None:
        time.sleep(seconds)
        with process.control_cursor() as cursor:
            store_entry(cursor, stream, name, process.trackers[stream.name].announceable)

    _put(writers.WriterProcess, "_start_on", note)
    _put(writers.leases, "store_entry", store_late)
    _put(writer, "before_commit", lambda connection: time.sleep(0.2))


def _existing(owner: Any, name: str) -> Any:
    found = getattr(owner, name, None)
    if found is None:
        raise AssertionError(f"{owner.__name__}.{name} is gone: plant this fault where that work is done now")
    return found


def _put(owner: Any, name: str, fault: Any) -> None:
    _existing(owner, name)
    setattr(owner, name, fault)


PLANTS: dict[str, Callable[[], None]] = {
    "announce-before-commit": _announce_before_commit,
    "skip-fetching": _skip_fetching,
    "late-writer-row": _late_writer_row,
}


def plant(name: str) -> None:
    """Break this process."""
    PLANTS[name]()
