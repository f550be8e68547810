"""How far a run is, told from the ends of the logs while they are written."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.torture.logs import Seen

__all__ = ["FollowerTail", "ProgressLine", "WriterTail"]


class _Tail:
    """Reads what was added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def new_lines(self) -> list[str]:
        if not self._path.exists():
            return []
        if self._path.stat().st_size < self._offset:  # a killed follower's last line was cut away
            self._offset, self._rest = self._path.stat().st_size, b""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines]


class WriterTail(_Tail):
    """Counts the facts of a writer whose commit was acknowledged."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._sent: dict[str, int] = {}

    def new_facts(self) -> int:
        count = 0
        for line in self.new_lines():
            kind, _, rest = line.partition(" ")
            if kind == "S":
                _, stream, first, *more = rest.split()
                self._sent[f"{stream} {first}"] = 1 + len(more)
            elif kind == "D":
                count += self._sent.pop(rest, 0)
        return count


class FollowerTail(_Tail):
    """The linear positions that a follower told last."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._linear: dict[str, int] = {}

    def linear(self) -> dict[str, int]:
        for line in self.new_lines():
            self._linear |= {seen.stream: seen.linear for seen in Seen.parse(line)}
        return self._linear


class ProgressLine:
    """One line a second on stderr: what was done, how fast, and how long it will take."""

    def __init__(self, seconds: float, facts: int, *, is_shown: bool) -> None:
        self._seconds, self._facts, self._is_shown = seconds, facts, is_shown
        self._begun = self._told = time.monotonic()

    def tell(self, facts: int, what: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not self._is_shown or (now < self._told + 1 and not at_once):
            return
        self._told = now
        passed = now - self._begun
        rate = facts / passed if passed else 0.0
        sys.stderr.write(
            f"{passed:6.0f} s  {facts:>9,} facts ({rate:,.0f}/s)  {what}  left {self._left(passed, rate, facts)}\n"
        )

    def _left(self, passed: float, rate: float, facts: int) -> str:
        if self._facts:
            return f"{(self._facts - facts) / rate:.0f} s" if rate and facts < self._facts else "-"
        return f"{max(self._seconds - passed, 0):.0f} s"
