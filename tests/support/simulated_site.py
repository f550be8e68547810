"""A whole site in memory, for properties: writers, readers, one table, one ordered queue of notifications.

The rules under test are the real ones (``streams.core.tracker``, ``streams.core.recovery``, ``streams.core.positions``);
around them is only what PostgreSQL promises. ``truth`` is the slow, obvious model: the state of every ID ever given out.
Faults can be switched on, to see that the checks notice them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, StrEnum
from itertools import count

from streams.core.positions import RETIRED, active_and_retired, linear_position
from streams.core.tracker import Fetch, PositionTracker, TrackerState
from streams.reading.rows import StoredPosition
from tests.support.simulated_database import SimulatedDatabase

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Truth(Enum):
    """What became of an ID."""

    PENDING = "pending"
    COMMITTED = "committed"
    GONE = "gone"


class Fault(StrEnum):
    """What can be broken on purpose."""

    NONE = "none"
    COMPLETE_BEFORE_COMMIT = "complete before commit"
    NO_FETCHING = "IDs taken outside of fetching"
    ANNOUNCE_BEFORE_COMMIT = "announce before commit"
    LATE_ENTRY = "first reservation before the writer's row is committed"
    BLIND_VERDICT = "a message in doubt taken as void while it is at work"
    BLIND_RESOLUTION = "dead writer retired while its transaction is open"


@dataclass(eq=False)
class Transaction:
    """An open or ended transaction of a writer, with the IDs that it reserved; ``ended`` as the database sees it."""

    writer: str
    ids: list[int]
    ended: bool = False
    committed: bool = False


@dataclass(eq=False)
class FetchUnderWay:
    """IDs on their way: the database may have given them out already."""

    fetch: Fetch | None
    count: int
    ids: list[int] | None = None
    alone: Transaction | None = None  # the message that takes them is a transaction of its own


@dataclass(eq=False)
class Writer:
    """A living process; ``heard`` counts the notifications that it has read."""

    name: str
    tracker: PositionTracker
    heard: int
    serial: int
    transactions: list[Transaction] = field(default_factory=list)
    fetches: list[FetchUnderWay] = field(default_factory=list)
    announced: int = 0
    completed: int = 0


@dataclass(eq=False)
class Reader:
    """Follows by notifications, and reads rows up to the linear position and up to each writer's."""

    tracker: PositionTracker
    heard: int
    serial: int
    cursor: int = 1
    seen: list[int] = field(default_factory=list)
    of_writers: dict[str, tuple[int, list[int]]] = field(default_factory=dict)


class Site:
    """All of it, with one method per thing that can happen."""

    def __init__(self, fault: Fault = Fault.NONE) -> None:
        self.fault = fault
        self.database = SimulatedDatabase()
        self.retired: set[str] = set()
        self.entered: set[str] = set()
        self.queue: list[tuple[str, int | None]] = []  # (writer, position); None: look at the whole set
        self.truth: dict[int, tuple[str, Truth]] = {}
        self.writers: dict[str, Writer] = {}
        self.readers: list[Reader] = []
        self.ghosts: list[Transaction] = []
        self._serials = count()

    # --- what the database shows ----------------------------------------------------------------------------------

    def stored(self) -> dict[str, StoredPosition]:
        """The table of positions."""
        return {
            name: StoredPosition(
                "simulated", name, at, RETIRED if name in self.retired else "active", _NOW, _NOW, 0, None, None
            )
            for name, at in self.database.stored.items()
        }

    def head(self) -> int:
        """The largest ID that has a row."""
        return max((number for _, number in self.database.rows), default=1)

    def pending(self, writer: str | None = None) -> list[int]:
        """IDs (of one writer) that may still become rows."""
        return [n for n, (w, s) in self.truth.items() if s is Truth.PENDING and writer in (None, w)]

    # --- writers come and go --------------------------------------------------------------------------------------

    def may_join(self, name: str) -> bool:
        """The two locks: nobody has the name, and no transaction of an earlier life is open."""
        return name not in self.writers and not any(ghost.writer == name for ghost in self.ghosts)

    def join(self, name: str) -> None:
        """Start on the stream: findings, row and notification in one transaction, before any reservation."""
        active = sorted({w for w in self.database.stored if w not in self.retired} | {name})
        kept = dict(self.database.stored)
        tracker = self.database.start(name, active)
        self.database.stored = kept  # positions of retired writers stay in the table
        self.writers[name] = writer = Writer(name, tracker, len(self.queue), next(self._serials))
        if self.fault is not Fault.LATE_ENTRY:
            self.enter(writer)

    def enter(self, writer: Writer) -> None:
        """Commit the writer's row, at or above every stored position, and tell."""
        position = max([writer.tracker.announceable, *self.database.stored.values()])
        self.database.store(writer.name, position)
        self.retired.discard(writer.name)
        self.queue.append((writer.name, self.database.stored[writer.name]))

    def crash(self, name: str) -> None:
        """kill -9: its open transactions live on in the server for a while."""
        writer = self.writers.pop(name)
        self.ghosts += [t for t in writer.transactions if not t.ended]
        for fetch in writer.fetches:
            if fetch.alone is None:
                self._void(fetch.ids or [])
            elif not fetch.alone.ended:
                self.ghosts.append(fetch.alone)

    def resolve(self, name: str) -> None:
        """Somebody holds both locks of a dead writer: retire it at the end of the table."""
        if self.fault is Fault.BLIND_RESOLUTION or self.may_join(name):
            highest = max((number for _, number in self.database.rows), default=0)
            self.database.store(name, highest)
            self._retire(name)

    def leave(self, name: str) -> None:
        """Orderly: only with nothing open."""
        writer = self.writers[name]
        if writer.transactions or writer.fetches:
            return
        self.announce(writer)
        del self.writers[name]
        if name in self.database.stored:
            self._retire(name)

    def _retire(self, name: str) -> None:
        self.retired.add(name)
        self.queue.append((name, None))

    # --- reserve and complete -------------------------------------------------------------------------------------

    def begin_fetch(self, writer: Writer, number: int) -> None:
        """The process asks for IDs."""
        fetch = None if self.fault is Fault.NO_FETCHING else writer.tracker.begin_fetch()
        writer.fetches.append(FetchUnderWay(fetch, number))

    def take_ids(self, writer: Writer, under_way: FetchUnderWay) -> None:
        """The sequence gives them out; the process does not know yet."""
        under_way.ids = self.database.nextval(under_way.count)
        self.truth.update(dict.fromkeys(under_way.ids, (writer.name, Truth.PENDING)))

    def end_fetch(self, writer: Writer, under_way: FetchUnderWay) -> None:
        """They arrive."""
        writer.fetches.remove(under_way)
        fetch = under_way.fetch or writer.tracker.begin_fetch()
        writer.tracker.end_fetch(fetch, under_way.ids or [])
        if under_way.ids:
            writer.transactions.append(Transaction(writer.name, under_way.ids))

    def commit_alone(self, writer: Writer, under_way: FetchUnderWay, rows: int) -> None:
        """The message writes its rows and commits, or is at it still; the process knows nothing yet."""
        if under_way.alone is None:
            under_way.alone = Transaction(writer.name, under_way.ids or [])
        elif not under_way.alone.ended:
            self.end(under_way.alone, commit=True, rows=rows)

    def settle(self, writer: Writer, under_way: FetchUnderWay) -> None:
        """The answer comes, or the table is asked because it was lost: what has not committed by then never will."""
        message = under_way.alone
        if message is None:
            return
        if not message.ended and self.fault is Fault.BLIND_VERDICT:
            self.ghosts.append(message)
        elif not message.ended:
            self.end(message, commit=False, rows=0)
        writer.fetches.remove(under_way)
        known = [n for w, n in self.database.rows if w == writer.name and n in message.ids]
        writer.tracker.settle(under_way.fetch or writer.tracker.begin_fetch(), known)
        writer.completed = max([writer.completed, *known])

    def find_head(self, writer: Writer) -> None:
        """At rest after IDs were lost: take one more and let it go."""
        if writer.tracker.has_lost_ids:
            fetch = writer.tracker.begin_fetch()
            ids = self.database.nextval(1)
            self.truth.update(dict.fromkeys(ids, (writer.name, Truth.GONE)))
            writer.tracker.end_fetch(fetch, ids)
            writer.tracker.complete(ids, written=False)
            writer.completed = ids[0]

    def fail_fetch(self, writer: Writer, under_way: FetchUnderWay) -> None:
        """The connection broke: whatever was given out is lost with its transaction."""
        self._void(under_way.ids or [])
        under_way.ids = None
        self.end_fetch(writer, under_way)

    def _void(self, ids: list[int]) -> None:
        for number in ids:
            self.truth[number] = self.truth[number][0], Truth.GONE

    def end(self, transaction: Transaction, *, commit: bool, rows: int) -> None:
        """COMMIT or ROLLBACK in the database; some reserved IDs may have no row."""
        transaction.ended, transaction.committed = True, commit
        for number in transaction.ids:
            self.truth[number] = transaction.writer, Truth.COMMITTED if commit else Truth.GONE
        if commit:
            self.database.insert(transaction.writer, *transaction.ids[:rows])
        if transaction in self.ghosts:
            self.ghosts.remove(transaction)

    def complete(self, writer: Writer, transaction: Transaction) -> None:
        """The process learns how the transaction ended."""
        if transaction.ended or self.fault is Fault.COMPLETE_BEFORE_COMMIT:
            writer.transactions.remove(transaction)
            writer.tracker.complete(transaction.ids, written=transaction.committed or not transaction.ended)
            writer.completed = max([writer.completed, *transaction.ids])
            if not transaction.ended:
                self.ghosts.append(transaction)

    # --- announce and hear ----------------------------------------------------------------------------------------

    def announce(self, writer: Writer) -> bool:
        """Store and notify; whether anything moved."""
        position = writer.tracker.announceable
        if self.fault is Fault.ANNOUNCE_BEFORE_COMMIT:
            position = max([position, *writer.tracker.pending])
        if position <= max(self.database.stored.get(writer.name, 0), writer.announced):
            return False
        writer.announced = position
        self.database.store(writer.name, position)
        self.queue.append((writer.name, position))
        return True

    def hear(self, who: Writer | Reader, most: int) -> None:
        """Read the next notifications of the queue."""
        for name, position in self.queue[who.heard : who.heard + most]:
            if position is not None:
                who.tracker.advance(name, position)
            else:
                self._look(who.tracker)
        who.heard = min(who.heard + most, len(self.queue))

    def _look(self, tracker: PositionTracker) -> None:
        tracker.learn(*active_and_retired(self.stored()))

    def add_reader(self) -> None:
        """LISTEN first, then read the table."""
        stored = self.stored()
        linear = linear_position(stored.values())
        positions, _ = active_and_retired(stored)
        reader = Reader(PositionTracker(TrackerState(linear, positions)), len(self.queue), next(self._serials))
        self.readers.append(reader)

    def reconnect(self, reader: Reader) -> None:
        """Everything not yet heard is lost; LISTEN, then look at the table."""
        reader.heard = len(self.queue)
        self._look(reader.tracker)

    # --- read rows ------------------------------------------------------------------------------------------------

    def read(self, reader: Reader) -> None:
        """Rows of (cursor, linear], and per writer those of (cursor, position]."""
        upto = reader.tracker.linear
        reader.seen += sorted(n for _, n in self.database.rows if reader.cursor < n <= upto)
        reader.cursor = upto
        for name in self.database.stored:
            after, seen = reader.of_writers.get(name, (1, []))
            to = reader.tracker.position_of(name)
            more = sorted(n for w, n in self.database.rows if w == name and after < n <= to)
            reader.of_writers[name] = to, seen + more
