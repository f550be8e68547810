"""CPU and rows per stored message in a room of 1,000 members, one by one and in batches, against bare inserts of the same rows.

Everything that ``persist`` does is in: parsing, content and reference hashes, auth rules, graph, state, visibility, positions
and their announcements. CPU is that of this process (all threads) and of all processes of the database server. The *peer* inserts
the same rows into copies of the tables through the driver alone: one transaction as often, nothing checked, nothing announced.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from django.db import connection
from psycopg2.extras import execute_values

from events.format.parsing import ParsedEvent
from events.persist.batch import Incoming, persist
from events.sending.finish import finish_event
from script.benchmarks.report import Report, median_ratio
from script.benchmarks.server_cpu import server_seconds, spent
from state.rules.room_versions import room_version
from streams.db import driver
from streams.reading.position_notifications import PositionListener
from streams.writing.name import use_instance

MEMBERS = 1_000
ROUNDS = 5
ONE_BY_ONE = 200
BATCHES, BATCH = 10, 100
LIMITS = {1: (1.5, 6.0), BATCH: (0.3, 4.0)}
"""Events a transaction -> most milliseconds of CPU and most rows per event."""
BEGINNING = 4
"""The events of a room before the joins of others than its founder."""
_VERSION = "11"
_ROOM = "!bench:localhost"
_COPIED = ("events_event", "events_eventjson", "events_eventedge", "events_forwardextremity")
_ROWS = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE relname !~ '^bench_'"


@dataclass(frozen=True, slots=True)
class Cost:
    """What some events took: milliseconds of CPU and rows, per event."""

    application: float
    server: float
    rows: float

    @property
    def cpu(self) -> float:
        """Both sides."""
        return self.application + self.server


class BenchRoom:
    """A public room whose members talk in turn, one line of events."""

    def __init__(self, members: int = MEMBERS, room_id: str = _ROOM, version: str = _VERSION) -> None:
        self._room_id = room_id
        self._version = version
        self._users = [f"@user-{number}:localhost" for number in range(members)]
        self._depth = self._made = 0
        self._prevs: list[str] = []
        self._state: dict[tuple[str, str], str] = {}

    def set_up(self) -> list[ParsedEvent]:
        """The room with all its members."""
        founder = self._users[0]
        begin: list[tuple[str, str, dict[str, Any]]] = [
            ("m.room.create", "", {"room_version": self._version, "creator": founder}),
            ("m.room.member", founder, {"membership": "join"}),
        ]
        begin += [("m.room.power_levels", "", {"users": {founder: 100}})]
        begin += [("m.room.join_rules", "", {"join_rule": "public"})]
        events = [self._state_event(founder, *parts) for parts in begin]
        return events + [self._join(user) for user in self._users[1:]]

    def joins(self, count: int) -> list[ParsedEvent]:
        """Joins of so many further users, each on top of the one before."""
        further = [f"@user-{len(self._users) + number}:localhost" for number in range(count)]
        self._users += further
        return [self._join(user) for user in further]

    def _join(self, user: str) -> ParsedEvent:
        return self._state_event(user, "m.room.member", user, {"membership": "join"})

    def messages(self, count: int) -> list[ParsedEvent]:
        """The next messages, each on top of the one before."""
        return [self._message(self._users[(7 * (self._depth + n)) % len(self._users)]) for n in range(count)]

    def changes(self, count: int) -> list[ParsedEvent]:
        """The next events, messages and changed names of members in turn."""
        found = []
        for number in range(count // 2):
            user = self._users[number % len(self._users)]
            content = {"membership": "join", "displayname": f"name {self._depth}"}
            found += [self._state_event(user, "m.room.member", user, content), *self.messages(1)]
        return found

    def _state_event(self, sender: str, event_type: str, state_key: str, content: dict[str, Any]) -> ParsedEvent:
        needed = ["m.room.create", "m.room.power_levels"]
        needed += ["m.room.join_rules"] if event_type == "m.room.member" else []
        event = self._next(sender, needed, {"type": event_type, "state_key": state_key, "content": content})
        self._state[event_type, state_key] = event.event_id
        return event

    def _message(self, sender: str) -> ParsedEvent:
        content = {"msgtype": "m.text", "body": f"message number {self._depth}, of a usual length for a message"}
        return self._next(
            sender, ["m.room.create", "m.room.power_levels"], {"type": "m.room.message", "content": content}
        )

    def _next(self, sender: str, needed: Sequence[str], parts: dict[str, Any]) -> ParsedEvent:
        keys = [*((event_type, "") for event_type in needed), ("m.room.member", sender)]
        named = {
            "prev_events": self._prevs,
            "auth_events": [self._state[key] for key in keys if key in self._state],
        }
        if not room_version(self._version).ids_are_hashes:
            self._made += 1
            parts = {**parts, "event_id": f"${self._made}-{self._room_id[1:]}"}
            named = {part: [[event_id, {}] for event_id in ids] for part, ids in named.items()}
        event = finish_event(
            {
                "room_id": self._room_id,
                "sender": sender,
                "origin_server_ts": time.time_ns() // 1_000_000,
                "depth": self._depth + 1,
                **named,
                **parts,
            },
            self._version,
        )
        self._depth, self._prevs = self._depth + 1, [event.event_id]
        return event


# --- measuring --------------------------------------------------------------------------------------------------------


def rows_written() -> int:
    """Rows inserted, updated and deleted since the statistics began; of every session, the looker's a second late."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(_ROWS)
        return int(cursor.fetchone()[0])


def cost_of(work: Callable[[], None], events: int) -> Cost:
    """What ``work`` takes for each of its events."""
    rows, server = rows_written(), server_seconds()
    own = time.process_time()
    work()
    own = time.process_time() - own
    return Cost(1000 * own / events, 1000 * spent(server, server_seconds()) / events, (rows_written() - rows) / events)


def stored(batches: Sequence[Sequence[ParsedEvent]]) -> Callable[[], None]:
    """Storing these batches."""
    incoming = [[Incoming(event.json, event.room_version) for event in batch] for batch in batches]

    def work() -> None:
        for batch in incoming:
            outcome = persist(batch, verified=True)
            if len(outcome.stored) < len(batch) or any(event.rejected_reason for event in outcome.stored):
                raise RuntimeError(f"a message was not stored: {outcome}")

    return work


# --- the peer ---------------------------------------------------------------------------------------------------------


class Peer:
    """Bare inserts of rows that were stored before, into copies of the tables."""

    def __init__(self) -> None:
        self._connection = driver.direct_connection(application_name="bench peer")
        self._connection.autocommit = False
        self._columns = {table: self._copy(table) for table in _COPIED}
        self._leaf: str | None = None

    def _copy(self, table: str) -> list[str]:
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE bench_{table} (LIKE {table} INCLUDING ALL)")
            cursor.execute(f"SELECT * FROM {table} LIMIT 0")
            return [column.name for column in cursor.description]

    def inserts(self, batches: Sequence[Sequence[ParsedEvent]]) -> Callable[[], None]:
        """Inserting the rows of these events."""
        rows = [list(self._rows_of([event.event_id for event in batch])) for batch in batches]

        def work() -> None:
            for batch, tables in zip(batches, rows, strict=True):
                self._insert(tables, batch[-1].event_id)

        return work

    def _rows_of(self, event_ids: list[str]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
        with self._connection, self._connection.cursor() as cursor:
            for table in _COPIED[:3]:
                cursor.execute(f"SELECT * FROM {table} WHERE event_id = ANY(%s)", [event_ids])
                yield table, cursor.fetchall()

    def _insert(self, tables: Sequence[tuple[str, list[tuple[Any, ...]]]], extremity: str) -> None:
        with self._connection, self._connection.cursor() as cursor:
            for table, rows in tables:
                execute_values(cursor, f"INSERT INTO bench_{table} VALUES %s", rows, page_size=len(rows))
            if self._leaf is None:
                cursor.execute("INSERT INTO bench_events_forwardextremity VALUES (%s, %s)", [extremity, _ROOM])
            else:
                cursor.execute(
                    "UPDATE bench_events_forwardextremity SET event_id = %s WHERE event_id = %s",
                    [extremity, self._leaf],
                )
            self._leaf = extremity

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()


def measure(report: Report, room: BenchRoom, peer: Peer, size: int, count: int) -> None:
    """A row for transactions of ``size`` events."""
    ours: list[Cost] = []
    bare: list[Cost] = []
    for _ in range(ROUNDS):
        batches = [room.messages(size) for _ in range(count)]
        ours.append(cost_of(stored(batches), size * count))
        bare.append(cost_of(peer.inserts(batches), size * count))
    cpu_limit, rows_limit = LIMITS[size]
    cpu, rows = statistics.median(cost.cpu for cost in ours), statistics.median(cost.rows for cost in ours)
    report.add(
        transaction=f"{size} message{'s' * (size > 1)}",
        application=statistics.median(cost.application for cost in ours),
        server=statistics.median(cost.server for cost in ours),
        cpu=cpu,
        limit=cpu_limit,
        peer=statistics.median(cost.cpu for cost in bare),
        ratio=median_ratio([cost.cpu for cost in ours], [cost.cpu for cost in bare]),
        rows=rows,
        rows_limit=rows_limit,
        ok="yes" if cpu <= cpu_limit and rows <= rows_limit else "NO",
    )


def main() -> None:
    """Messages one by one and in batches."""
    use_instance("bench")
    title = f"milliseconds of CPU and rows per message in a room of {MEMBERS:,} members"
    report = Report("persist", title)
    room = BenchRoom()
    joined = room.set_up()
    stored([joined[n : n + 200] for n in range(0, len(joined), 200)])()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    looker = PositionListener(lambda _: None)
    looker.start()
    with closing(Peer()) as peer:
        stored([room.messages(1) for _ in range(20)])()
        measure(report, room, peer, 1, ONE_BY_ONE)
        measure(report, room, peer, BATCH, BATCHES)
    looker.stop()
    report.finish()
