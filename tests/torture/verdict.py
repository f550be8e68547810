"""What is held against what (pure): the table, the writers' logs and the followers' logs.

A follower's log must equal the table: nothing missing, nothing twice after its cursor, nothing out of order per writer, and
for the linear view over all writers. And nothing is seen before its commit, neither a row nor a position that covers it:
a writer notes the time before it sends COMMIT, a follower the time at which it is handed rows, and the time at which it
says "all of this writer up to here is known". Whoever says so before COMMIT was sent spoke of a fact that nobody could
read yet, and would have lost it had it looked then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.torture.logs import Seen

__all__ = ["Commits", "TableFact", "Violation", "check_follower", "check_writers", "read_writer_lines"]

#: Stream and ID.
Key = tuple[str, int]
#: More of one kind tell nothing new.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, where, and what broke it."""

    rule: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}: {self.detail}"


@dataclass(frozen=True, slots=True)
class TableFact:
    """What the table holds under one ID."""

    writer: str
    checksums: tuple[int, ...]


@dataclass(slots=True)
class Commits:
    """What all writers noted."""

    sent_at: dict[Key, float] = field(default_factory=dict)
    acknowledged: set[Key] = field(default_factory=set)
    intended: dict[Key, float] = field(default_factory=dict)
    """(Stream, checksum) of facts whose IDs their writer learns only when they are committed."""
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    errors: list[str] = field(default_factory=list)

    def find_intended(self, table: Mapping[Key, TableFact]) -> None:
        """Facts that were committed by a writer that did not live to note their IDs: by what they carry."""
        for (stream, number), fact in table.items():
            meant_at = self.intended.get((stream, fact.checksums[0]))
            if meant_at is not None:
                self.sent_at.setdefault((stream, number), meant_at)


def read_writer_lines(lines: Iterable[str], commits: Commits) -> None:
    """Add the log of one writer's process."""
    groups: dict[Key, list[Key]] = {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "S":
            moment, stream, *ids = rest.split()
            keys = [(stream, int(number)) for number in ids]
            groups[keys[0]] = keys
            commits.sent_at.update(dict.fromkeys(keys, float(moment)))
        elif kind == "I":
            moment, stream, *sums = rest.split()
            commits.intended.update(dict.fromkeys(((stream, int(one)) for one in sums), float(moment)))
        elif kind == "D":
            stream, number = rest.split()
            commits.acknowledged.update(groups.pop((stream, int(number))))
        elif kind == "R":
            commits.refused[rest] += 1
        else:
            commits.errors.append(rest)


def check_writers(table: Mapping[Key, TableFact], commits: Commits) -> list[Violation]:
    """Nothing that a writer was told is stored may be gone, and nothing is there that no writer meant to store."""
    found = [Violation("unexpected error", "writer", text) for text in commits.errors[:SHOWN]]
    lost = sorted(commits.acknowledged - table.keys())
    foreign = sorted(table.keys() - commits.sent_at.keys())
    found += [Violation("acknowledged fact is not in the table", "table", _told(key)) for key in lost[:SHOWN]]
    found += [Violation("fact that no writer sent", "table", _told(key)) for key in foreign[:SHOWN]]
    return found


class _Claims:
    """When a follower first said that it knew everything of a writer up to some ID."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str | None], tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))

    def note(self, seen: Seen) -> None:
        for writer, position in (*seen.positions.items(), (None, seen.linear)):
            positions, times = self._steps[seen.stream, writer]
            if not positions or position > positions[-1]:
                positions.append(position)
                times.append(seen.time)

    def first_time(self, stream: str, writer: str, number: int) -> float:
        """The earliest time at which that ID of that writer was covered, by the writer's position or the linear one."""
        return min(self._first(stream, writer, number), self._first(stream, None, number))

    def _first(self, stream: str, writer: str | None, number: int) -> float:
        positions, times = self._steps[stream, writer]
        index = bisect_left(positions, number)
        return times[index] if index < len(positions) else float("inf")


def check_follower(
    name: str,
    steps: Iterable[Seen],
    table: Mapping[Key, TableFact],
    commits: Commits,
    *,
    is_linear: bool,
    is_over: bool,
) -> list[Violation]:
    """Hold a follower's log, over all its lives, against the table; until all ``is_over`` facts may still be on their way.

    Meanwhile the table and the writers' logs must have been read before the follower's log.
    """
    checker = _FollowerCheck(name, is_linear, table, commits)
    for seen in steps:
        checker.take(seen)
    return checker.violations(is_over)


class _FollowerCheck:
    def __init__(self, name: str, is_linear: bool, table: Mapping[Key, TableFact], commits: Commits) -> None:
        self._name, self._is_linear, self._table, self._commits = name, is_linear, table, commits
        self._found: dict[str, list[str]] = defaultdict(list)
        self._claims = _Claims()
        self._last: dict[tuple[str, str], int] = {}
        self._got: dict[Key, list[int]] = {}

    def take(self, seen: Seen) -> None:
        current = None
        for writer, number, crc in seen.rows:
            key = seen.stream, number
            if key != current:
                self._begin_fact(writer, key, seen.time)
                current = key
            self._got[key].append(crc)
        self._claims.note(seen)

    def _begin_fact(self, writer: str, key: Key, moment: float) -> None:
        stream, number = key
        order = stream, "" if self._is_linear else writer
        if key in self._got:
            self._found["fact came twice"].append(_told(key))
        elif number < self._last.get(order, 0):
            self._found["fact out of order"].append(f"{_told(key)} of {writer} after {self._last[order]}")
        self._last[order] = max(number, self._last.get(order, 0))
        if moment < self._commits.sent_at.get(key, 0.0):
            self._found["row seen before its commit"].append(_told(key))
        self._got[key] = []

    def violations(self, is_over: bool) -> list[Violation]:
        for key, fact in self._table.items():
            if key in self._got and tuple(self._got[key]) != fact.checksums:
                self._found["fact has other rows than the table"].append(f"{_told(key)} of {fact.writer}")
            elif is_over and key not in self._got:
                self._found["fact is missing"].append(f"{_told(key)} of {fact.writer}")
            self._check_claim(key, fact.writer)
        if is_over:
            foreign = sorted(self._got.keys() - self._table.keys())
            self._found["fact that is not in the table"] += [_told(key) for key in foreign]
        return [Violation(*shown) for shown in self._shown()]

    def _check_claim(self, key: Key, writer: str) -> None:
        early = self._commits.sent_at.get(key, 0.0) - self._claims.first_time(key[0], writer, key[1])
        if early > 0:
            self._found["position passed a fact before its commit"].append(
                f"{_told(key)} of {writer}, {early * 1000:.1f} ms early"
            )

    def _shown(self) -> Iterator[tuple[str, str, str]]:
        for rule, details in sorted(self._found.items()):
            if details:
                yield rule, self._name, _summary(details)


def _told(key: Key) -> str:
    return f"{key[0]} {key[1]}"


def _summary(details: Sequence[str]) -> str:
    more = f" and {len(details) - SHOWN} more" if len(details) > SHOWN else ""
    return "; ".join(details[:SHOWN]) + more
