"""Makes the answers to the live page's questions once for all viewers of this process.

A viewer asks each second. However many ask, a snapshot is taken once, and its page is rendered and compressed once for all
viewers with the same rights. Example: 100 superusers and 5 members of staff ask within the same second. The database is read
once, and two answers are made. Within the next second only the position of one writer moves. The rows of this stream are
rendered again, and all others are taken from the last page. If nothing moves, the tags stay the same, and everybody who has
them gets 304.
"""

from __future__ import annotations

import gzip
import json
import threading
from dataclasses import dataclass
from hashlib import blake2b

from replsite.dashboard.fragments import Fragments, render
from replsite.dashboard.page import Page, live_page_data
from replsite.live_rows.shared import SHARED, SharedSnapshot
from replsite.live_rows.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Answer:
    """The page for viewers with the same rights. ``as_of`` is not in ``packed``, because it changes with each snapshot."""

    as_of: str
    etag: str
    packed: bytes
    """JSON, compressed by gzip: the fragments by their names, and the tables by theirs."""


class SharedAnswers:
    """The answers made of the newest snapshot. May be used from any thread."""

    def __init__(self, shared: SharedSnapshot = SHARED) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._page: Page | None = None
        self._made: dict[frozenset[str], tuple[Fragments, Answer]] = {}
        self._last_page: Page | None = None
        self._last_made: dict[frozenset[str], tuple[Fragments, Answer]] = {}

    def of(self, rights: frozenset[str]) -> Answer:
        """Returns the answer for viewers with these rights. Raises ``django.db.Error`` if the database cannot be read."""
        # The snapshot is fetched under the lock: a slower thread must not come with an older one after a newer one.
        with self._lock:
            snapshot = self._shared.get()
            if self._page is None or snapshot is not self._snapshot:
                page = live_page_data(snapshot)
                self._last_page, self._last_made = self._page, self._made
                self._snapshot, self._page, self._made = snapshot, page, {}
            if rights not in self._made:
                self._made[rights] = self._make(self._page, rights)
            return self._made[rights][1]

    def _make(self, page: Page, rights: frozenset[str]) -> tuple[Fragments, Answer]:
        last = self._last_made.get(rights)
        known = (self._last_page, last[0]) if last is not None and self._last_page is not None else None
        shown = render(page, rights, last=known)
        content = {"storage_at": shown.storage_at, "state": shown.state, "summary": shown.summary, **shown.tables}
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        # The tag is made of the content: behind a proxy the next question may go to another process.
        etag = f'W/"{blake2b(text, digest_size=12).hexdigest()}"'
        packed = last[1].packed if last is not None and last[1].etag == etag else gzip.compress(text, 1)
        return shown, Answer(shown.as_of, etag, packed)
