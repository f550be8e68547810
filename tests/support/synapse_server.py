"""A made Synapse: stores events as the real one does, several at a time, and then announces them, over TCP or Redis.

IDs are taken outside of the transactions, so they become visible in another order, and some never. A writer announces a
position when nothing below it is open. As a process of its own it plays the shipped rooms, and goes on where it was killed:

    python -m tests.support.synapse_server DATABASE_URL tcp://127.0.0.1:PORT|redis://127.0.0.1:PORT?channel=NAME
        SEED EVENTS_PER_SECOND ROOM...
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from streams.replication.protocol.commands import Command, Ping, Position, RData, Server, format_line
from tests.support.room_data import event_lines
from tests.support.synapse_database import GROUPS, add_event, postgresql_database

MORE_TABLES = """
CREATE TABLE stream_positions (stream_name TEXT NOT NULL, instance_name TEXT NOT NULL, stream_id BIGINT NOT NULL,
    UNIQUE (stream_name, instance_name));
CREATE TABLE ex_outlier_stream (event_stream_ordering BIGINT PRIMARY KEY NOT NULL, event_id TEXT NOT NULL,
    state_group BIGINT NOT NULL, instance_name TEXT);
CREATE SEQUENCE events_stream_seq; SELECT nextval('events_stream_seq');
CREATE SEQUENCE events_backfill_stream_seq; SELECT nextval('events_backfill_stream_seq');
"""
SEQUENCES = {"events": "events_stream_seq", "backfill": "events_backfill_stream_seq"}
SERVER_NAME = "localhost:19201"


@contextmanager
def synapse_database(server: str) -> Iterator[str]:
    """An empty database of a Synapse, beside this test's."""
    with postgresql_database(server, []) as url:
        run(url, GROUPS + MORE_TABLES)
        yield url


def run(url: str, sql: str, *values: object) -> list[Any]:
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return cursor.fetchall() if cursor.description else []


# --- the wire ------------------------------------------------------------------------------------------------------------


class TcpWire:
    """A replication port as that of 1.43: all that is said goes to all connections."""

    def __init__(self, port: int = 0, server_name: str = SERVER_NAME) -> None:
        self.positions: Callable[[], Iterable[Command]] = tuple
        self._greeting = (Server(server_name), Ping("1"))
        self._lock = threading.Lock()
        self._clients: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", port))
        self.address = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._ping, daemon=True).start()

    def say(self, *commands: Command) -> None:
        lines = b"".join(map(format_line, commands))
        with self._lock:
            for client in list(self._clients):
                try:
                    client.sendall(lines)
                except OSError:
                    self._clients.remove(client)

    def cut(self) -> None:
        """Ends all connections; clients may connect again."""
        with self._lock:
            for client in self._clients:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            self._clients.clear()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                with self._lock:
                    client.sendall(b"".join(map(format_line, self._greeting)))
                    self._clients.append(client)
                threading.Thread(target=self._read, args=(client,), daemon=True).start()

    def _read(self, client: socket.socket) -> None:
        with suppress(OSError), client.makefile("rb") as lines:
            for line in lines:
                if line.split() == [b"REPLICATE"]:
                    self.say(*self.positions())

    def _ping(self) -> None:
        while not self._closed.wait(5):
            self.say(Ping("2"))


class RedisWire:
    """The channel of a current Synapse."""

    def __init__(self, port: int, channel: str = SERVER_NAME) -> None:
        import redis

        self.positions: Callable[[], Iterable[Command]] = tuple
        self.address = f"redis://127.0.0.1:{port}?channel={channel}"
        self._channel = channel
        self._client = redis.Redis(port=port, protocol=2)
        self._heard = self._client.pubsub()
        self._heard.subscribe(**{channel: self._answer})
        self._thread = self._heard.run_in_thread(sleep_time=0.01, daemon=True)

    def say(self, *commands: Command) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.publish(self._channel, format_line(command).removesuffix(b"\n"))
            pipeline.execute()

    def close(self) -> None:
        self._thread.stop()
        self._thread.join()
        self._client.close()

    def _answer(self, message: dict[str, Any]) -> None:
        if message["data"].split() == [b"REPLICATE"]:
            self.say(*self.positions())


# --- writers --------------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """An event of a room's file."""

    about: dict[str, Any]
    line: bytes

    @property
    def event_id(self) -> str:
        return str(self.about["event_id"])

    @property
    def stream(self) -> str:
        return "backfill" if self.about["stream_ordering"] < 0 else "events"

    def row(self) -> list[Any]:
        event = self.about["json"]
        kind, content = event["type"], event["content"]
        room_id = event.get("room_id", "!" + self.event_id[1:])
        membership = content.get("membership") if kind == "m.room.member" else None
        if self.stream == "backfill":
            return [self.event_id, room_id, kind, event.get("state_key"), event.get("redacts"), None]
        rejected = self.about["rejected_reason"] is not None
        return ["ev", [self.event_id, room_id, kind, event.get("state_key"), None, None, membership, rejected]]


@dataclass
class Writing:
    """An open transaction with one event."""

    connection: Any
    stream: str
    place: int
    told: Told


@dataclass
class Place:
    """A writer's place in one stream."""

    position: int
    open: set[int] = field(default_factory=set)
    rows: dict[int, list[Any]] = field(default_factory=dict)
    highest: int = 0

    @property
    def reached(self) -> int:
        return min(self.open) - 1 if self.open else max(self.highest, self.position)


class Writer:
    """A process that stores events. Its name is new, or nothing of an earlier one of that name is open."""

    def __init__(self, url: str, name: str, wire: TcpWire | RedisWire) -> None:
        self.name, self._url, self._wire = name, url, wire
        self._free: list[Any] = []
        self._lock = threading.RLock()
        self._own = psycopg2.connect(url)
        self._own.autocommit = True
        self.places = {stream: Place(self._last(sequence)) for stream, sequence in SEQUENCES.items()}

    def positions(self) -> list[Command]:
        with self._lock:
            return [Position(stream, self.name, at.position, at.position) for stream, at in self.places.items()]

    def begin(self, told: Told, *, is_move: bool = False) -> Writing:
        """Takes an ID and writes the event. ``is_move``: it is stored as an outlier, and gets its place."""
        with self._lock:
            stream = told.stream
            place = self._one(f"SELECT nextval('{SEQUENCES[stream]}')")
            self.places[stream].open.add(place)
            connection = self._free.pop() if self._free else psycopg2.connect(self._url)
        signed = -place if stream == "backfill" else place
        with connection.cursor() as cursor:
            if is_move:
                cursor.execute("UPDATE events SET outlier = false WHERE event_id = %s", [told.event_id])
                cursor.execute("UPDATE event_json SET internal_metadata = %s WHERE event_id = %s",
                               [json.dumps(told.about["internal_metadata"]), told.event_id])  # fmt: skip
                cursor.execute(
                    "INSERT INTO ex_outlier_stream VALUES (%s, %s, 1, %s)", [signed, told.event_id, self.name]
                )
            else:
                add_event(cursor.execute, {**told.about, "stream_ordering": signed}, told.line, set())
                cursor.execute("UPDATE events SET instance_name = %s WHERE event_id = %s", [self.name, told.event_id])
        return Writing(connection, stream, place, told)

    def end(self, writing: Writing, *, commit: bool = True, announce: bool = True) -> None:
        """Commits, or rolls back, then announces what is complete now."""
        (writing.connection.commit if commit else writing.connection.rollback)()
        with self._lock:
            self._free.append(writing.connection)
            at = self.places[writing.stream]
            at.open.discard(writing.place)
            at.highest = max(at.highest, writing.place)
            if commit:
                at.rows[writing.place] = writing.told.row()
                self._store_position(writing.stream, at.reached)
            if announce:
                self._announce(writing.stream)

    def store(self, *told: Told) -> None:
        """Stores events one after the other."""
        for one in told:
            self.end(self.begin(one))

    def close(self) -> None:
        for connection in (self._own, *self._free):
            connection.close()

    def _announce(self, stream: str) -> None:
        at = self.places[stream]
        reached = at.reached
        if reached <= at.position:
            return
        rows = sorted(place for place in at.rows if place <= reached)
        said: list[Command] = [RData(stream, self.name, place, at.rows.pop(place)) for place in rows]
        last = rows[-1] if rows else at.position
        if last < reached:
            said.append(Position(stream, self.name, last, reached))
        at.position = reached
        self._wire.say(*said)

    def _store_position(self, stream: str, place: int) -> None:
        signed = -place if stream == "backfill" else place
        with self._own.cursor() as cursor:
            cursor.execute(
                "INSERT INTO stream_positions VALUES (%s, %s, %s) ON CONFLICT (stream_name, instance_name) "
                "DO UPDATE SET stream_id = CASE WHEN abs(excluded.stream_id) > abs(stream_positions.stream_id) "
                "THEN excluded.stream_id ELSE stream_positions.stream_id END",
                [stream, self.name, signed],
            )

    def _last(self, sequence: str) -> int:
        return int(self._one(f"SELECT last_value FROM {sequence}"))

    def _one(self, sql: str) -> Any:
        with self._own.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]


# --- what happens in it -----------------------------------------------------------------------------------------------------


def told_events(room: str) -> list[Told]:
    """The events of a shipped room as they came: old ones behind the live ones, the newest first."""
    found = [Told(json.loads(line), line) for line in event_lines(room)]
    old = [one for one in found if one.stream == "backfill"]
    live = [one for one in found if one.stream == "events"]
    return [*live, *sorted(old, key=lambda one: -one.about["stream_ordering"])]


def play(
    url: str, writers: Sequence[Writer], rooms: Sequence[str], seed: int, per_second: float, done: Callable[[], object]
) -> None:
    """Stores the events of the rooms, mixed by chance, with up to three open at once; goes on where it ended."""
    chance = random.Random(seed)
    known = {event_id for (event_id,) in run(url, "SELECT event_id FROM events")}
    left = {room: [one for one in told_events(room) if one.event_id not in known] for room in rooms}
    writer_of = {room: writers[number % len(writers)] for number, room in enumerate(rooms)}
    begun, stored = time.monotonic(), 0
    while names := [room for room, events in left.items() if events]:
        together = chance.sample(names, min(len(names), chance.randint(1, 3)))
        opened = [(writer_of[room], writer_of[room].begin(left[room].pop(0))) for room in together]
        if chance.random() < 0.1:
            writer, again = opened[0][0], opened[0][1].told
            writer.end(opened.pop(0)[1], commit=False)
            opened.append((writer, writer.begin(again)))
        chance.shuffle(opened)
        for writer, writing in opened:
            writer.end(writing)
        stored += len(together)
        time.sleep(max(0.0, begun + stored / per_second - time.monotonic()))
    done()


def main() -> None:
    url, address, seed, per_second, *rooms = sys.argv[1:]
    port = int(address.partition("?")[0].rpartition(":")[2])
    wire: TcpWire | RedisWire = TcpWire(port) if address.startswith("tcp") else RedisWire(port)
    names = ["master"] if address.startswith("tcp") else ["persister1", "persister2"]
    writers = [Writer(url, name, wire) for name in names]
    wire.positions = lambda: [one for writer in writers for one in writer.positions()]
    wire.say(*wire.positions())
    os.write(1, b"ready\n")
    play(url, writers, rooms, int(seed), float(per_second), lambda: os.write(1, b"done\n"))
    threading.Event().wait()


if __name__ == "__main__":
    main()
