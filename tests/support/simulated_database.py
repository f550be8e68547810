"""What PostgreSQL holds of one stream, in memory: rows, stored positions and the sequence, for tests of the pure rules.

Numbers are kept as the database keeps them (negative on a backward stream) and positive at the border.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from streams.core.recovery import StreamFindings, recover
from streams.core.tracker import PositionTracker


@dataclass
class SimulatedDatabase:
    """One stream's tables as one statement would see them: committed rows only."""

    backward: bool = False
    rows: list[tuple[str, int]] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)
    sequence: int = 1  # its last value; one is taken when the stream is made

    def __post_init__(self) -> None:
        self.sign = -1 if self.backward else 1

    def nextval(self, count: int = 1) -> list[int]:
        """The next IDs, positive."""
        self.sequence += count
        return list(range(self.sequence - count + 1, self.sequence + 1))

    def insert(self, writer: str, *ids: int) -> None:
        """Committed rows under these (positive) IDs."""
        self.rows += [(writer, number * self.sign) for number in ids]

    def store(self, writer: str, position: int) -> None:
        """Upsert that never lowers."""
        self.stored[writer] = max(position, self.stored.get(writer, 0) * self.sign) * self.sign

    def findings(self, writers: Sequence[str] | None) -> StreamFindings:
        """What a starting process reads."""
        return StreamFindings(
            stream="simulated",
            table_maximum=max((number * self.sign for _, number in self.rows), default=0),
            sequence_value=self.sequence,
            stored={writer: position * self.sign for writer, position in self.stored.items()},
            writers=writers,
        )

    def rows_from(self, linear: int) -> Iterator[tuple[str, int]]:
        """(writer, ID) at or above a position, ascending."""
        positive = ((writer, number * self.sign) for writer, number in self.rows)
        yield from sorted((row for row in positive if row[1] >= linear), key=lambda row: row[1])

    def start(self, name: str | None, writers: Sequence[str] | None) -> PositionTracker:
        """Start a process; does what the outcome says: moves the sequence, drops the positions of unknown writers."""
        findings = self.findings(writers)
        outcome = recover(findings, name)
        if outcome.set_sequence_to is not None:
            self.sequence = outcome.set_sequence_to
        for writer in outcome.dropped_writers:
            del self.stored[writer]
        return outcome.tracker(self.rows_from(outcome.linear), findings)
