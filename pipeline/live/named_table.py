"""Makes each table of the live pipeline a named reader (``streams.follow``): one mechanism for every stored position.

The pipeline holds the reader's name and lease while its query runs, and moves the reader's cursors in the transaction
that changes the table. So the live page, the commands, the health checks and the metrics show the reader with its lag
from then on, whether a process runs it or not, until an operator forgets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from django.db import Error as DjangoDatabaseError

from pipeline.live.ledger import Vectors
from streams.core.positions import Stored, linear_position
from streams.db.driver import DatabaseError
from streams.follow.cursors import Owner
from streams.follow.lease import ReaderLock

__all__ = ["NamedTable", "ready_upto"]


class NamedTable:
    """The base class of the tables of the live pipeline. Run the query within a block of `held`."""

    name: ClassVar[str]
    streams: ClassVar[tuple[str, ...]]
    reader: ClassVar[str]
    """The name of the reader whose cursors say which facts the table includes."""
    kind: ClassVar[str] = "spark"
    """The kind of reader that the live page shows."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._owner = Owner(self.reader, 0, "", 0)
        self._lock: ReaderLock | None = None
        self._reached: Vectors = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the reader's name while the block runs. Raises ``ReaderNameTaken`` if another process holds it.

        An error that ends the block is stored with the reader, unless the database is away: then the pipeline waits and
        retries.
        """
        self._lock = ReaderLock(self.reader, self._using, lambda: self._reached)
        self._lock.kind = self.kind
        self._owner = self._lock.take()
        errors: dict[str, BaseException] = {}
        try:
            yield
        except (DatabaseError, DjangoDatabaseError):
            raise
        except Exception as error:
            errors = dict.fromkeys(self.streams, error)
            raise
        finally:
            self._lock.release(errors)

    @property
    def is_lost(self) -> bool:
        """True if this process has lost the reader's name, because the connection that held the name has ended."""
        return self._lock is not None and self._lock.lost.is_set()

    def show(self, vectors: Mapping[str, Mapping[str, int]]) -> None:
        """Sets the positions that the live page shows while the query runs."""
        self._reached = {stream: dict(vectors.get(stream, {})) for stream in self.streams}


def ready_upto(stored: Mapping[str, Stored], vector: Mapping[str, int]) -> int:
    """Returns the position up to which a table that has every fact up to ``vector`` has all facts of all writers.

    It is the largest position that meets two conditions. First, all facts up to this position are complete. Second,
    each of these facts is at or below the position of its writer in ``vector``.
    """
    # If a writer's stored position is above its position in ``vector``, the writer has facts that ``vector`` does not
    # cover. Then the result must not be above the writer's position in ``vector``.
    behind = [vector.get(writer, 0) for writer, at in stored.items() if at.position > vector.get(writer, 0)]
    return min([linear_position(stored.values()), *behind])
