"""``tests/data/streams/worked_examples.json``, step by step: real transactions, real looks, and the positions that they store.

Where an example tells a reader the positions of writers, the reader is a follower, by its own rule for RDATA and POSITION.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streams.core.positions import linear_position, position_of, positions_to_show
from streams.core.sequence_repair import sequence_repair
from streams.core.tokens import VectorToken
from streams.db.sequences import move_forward
from streams.errors import SequenceBehind
from streams.holds.hold import WRITE_AS
from streams.holds.installed_sql import MAINTENANCE
from streams.reading.position_store import SESSION, PositionStore
from streams.reading.rows import StoredPosition, stored_positions
from streams.replication.protocol.commands import Position, RData
from streams.replication.protocol.cursors import Cursors
from tests.support.held_tables import Session, Sessions, drop, sessions
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
EXAMPLES = json.loads((Path(__file__).parents[2] / "data/streams/worked_examples.json").read_text())
STREAM, TABLE, SEQUENCE = "worked", "worked_example", "worked_example_seq"
#: Their steps are about what a follower makes of announcements.
OF_FOLLOWERS = {"E4"}
#: Processes that know only what was stored before them, as nobody looks there. Whoever looks finds every idle writer at what the
#: sequence gave out: in E9, north and south at 19.
READ_WITHOUT_A_LOOK = {("E9", "A"), ("E9", "B")}

Shown = dict[str, Any]


class Stage:
    """The table, the sequence, and the open transactions of one example. Each step of the data is a method."""

    def __init__(self, example: dict[str, Any], make: Sessions) -> None:
        self.name, self.sign = example["name"], -1 if example["backward"] else 1
        self._make, self._looking = make, make()
        self._looking(SESSION)
        self._store = PositionStore()
        self._names: dict[str, str] = {}
        self._open: dict[int, Session] = {}
        self._owner: dict[int, str] = {}
        self._dead: list[Session] = []
        self._fetching: tuple[str, Session] | None = None
        self._fetched: list[int] = []
        self._looking(
            f"CREATE SEQUENCE {SEQUENCE} START 2; CREATE TABLE {TABLE} "
            f"(stream_id bigint NOT NULL, instance_name text NOT NULL); ALTER SEQUENCE {SEQUENCE} OWNED BY {TABLE}.stream_id"
        )
        self._looking("SELECT streams_hold_table(%s, %s, %s, backward => %s)", TABLE, STREAM, SEQUENCE, self.sign < 0)

    # --- steps ----------------------------------------------------------------------------------------------------

    def rows(self, step: dict[str, Any]) -> None:
        ids = [abs(number) for number in step["ids"]]
        own = self._make()
        own("BEGIN")
        own(f"SET LOCAL {MAINTENANCE} = on")
        self._insert(own, step["writer"], ids)
        own("COMMIT")
        if step["stored"]:
            self.store({"writer": step["writer"], "position": max(ids)})
        if step["sequence"]:
            self.sequence({"to": max(ids)})

    def sequence(self, step: dict[str, Any]) -> None:
        move_forward(self._looking.cursor, SEQUENCE, step["to"])

    def store(self, step: dict[str, Any]) -> None:
        self._looking(
            "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES (%s, %s, %s) "
            "ON CONFLICT (stream, instance_name) DO UPDATE SET position = excluded.position",
            STREAM, step["writer"], step["position"] * self.sign,
        )  # fmt: skip

    def start(self, step: dict[str, Any]) -> None:
        """A process comes: the server has noticed who died, and a process that appends examines the sequence.

        ``writers`` is whom the site expects. A stored writer that is not among them is retired.
        """
        pids = [own.connection.info.backend_pid for own in self._dead]
        for own in self._dead:
            own.close()
        # The server ends a session, and its locks, a moment after the client has left.
        ended = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid = ANY(%s)"
        wait_until(lambda: not self._looking.one(ended, pids))
        self._names[step["process"]] = step["name"]
        if step["name"] in step["writers"]:
            if step.get("refused"):
                with pytest.raises(SequenceBehind):
                    self._examine()
                return
            self._examine()
        self._looking(
            "UPDATE streams_streamposition SET state = CASE WHEN instance_name = ANY(%s) THEN 'active' ELSE 'retired' END "
            "WHERE stream = %s", step["writers"], STREAM)  # fmt: skip

    def _examine(self) -> None:
        """What the first append of a process does (``streams.writing.given_out``)."""
        move_to = sequence_repair(
            STREAM,
            {writer: at.position for writer, at in self._stored().items()},
            sequence_value=self._looking.one("SELECT coalesce(pg_sequence_last_value(%s::regclass), 1)", SEQUENCE),
            table_maximum=self._looking.one(f"SELECT coalesce(max(abs(stream_id)), 0) FROM {TABLE}"),
        )
        if move_to is not None:
            move_forward(self._looking.cursor, SEQUENCE, move_to)

    def reserve(self, step: dict[str, Any]) -> None:
        own = self._begin(step["process"])
        ids = self._draw(own, len(step["ids"]))
        assert ids == [abs(number) for number in step["ids"]]
        self._open.update(dict.fromkeys(ids, own))
        self._owner.update(dict.fromkeys(ids, step["process"]))

    def begin_fetch(self, step: dict[str, Any]) -> None:
        """The moment between the hold and the first ID."""
        self._fetching = step["process"], self._begin(step["process"])

    def end_fetch(self, step: dict[str, Any]) -> None:
        assert self._fetching is not None
        process, own = self._fetching
        self._fetched = self._draw(own, 1)
        assert self._fetched == [step["id"]]
        self._open[step["id"]], self._owner[step["id"]] = own, process

    def complete(self, step: dict[str, Any]) -> None:
        ids = self._fetched if step["ids"] == "fetched" else [abs(number) for number in step["ids"]]
        own = self._open.pop(ids[0])
        self._insert(own, self._names[self._owner[ids[0]]], ids)
        own("COMMIT")

    def roll_back(self, step: dict[str, Any]) -> None:
        self._open.pop(abs(step["ids"][0]))("ROLLBACK")

    def die(self, step: dict[str, Any]) -> None:
        """The server still has the sessions: it notices at the next start. Until then, what was open holds the stream."""
        mine = [
            number for number, process in self._owner.items() if process == step["process"] and number in self._open
        ]
        self._dead += [self._open.pop(number) for number in mine]

    def announce(self, step: dict[str, Any]) -> None:
        """Nobody announces itself: a look sees where each writer is."""
        writer = self._names[step["process"]]
        assert self._looking.seen(STREAM).position_of(writer) == abs(step["position"])

    def told(self, step: dict[str, Any]) -> None:
        """Nobody has to be told: whoever asks looks, or reads what was stored."""

    def _begin(self, process: str) -> Session:
        own = self._make()
        own("BEGIN")
        own(f"SELECT {WRITE_AS}" % {"writer": "%s"}, self._names[process])
        own(f"INSERT INTO {TABLE} (stream_id) SELECT 0 WHERE false")
        return own

    @staticmethod
    def _draw(own: Session, count: int) -> list[int]:
        return [row[0] for row in own("SELECT nextval(%s::regclass) FROM generate_series(1, %s)", SEQUENCE, count)]

    def _insert(self, own: Session, writer: str, ids: list[int]) -> None:
        own(
            f"INSERT INTO {TABLE} (stream_id, instance_name) SELECT unnest(%s::bigint[]), %s",
            [number * self.sign for number in ids], writer,
        )  # fmt: skip

    # --- what is seen ---------------------------------------------------------------------------------------------

    def views(self, process: str, writers: list[str]) -> Iterator[tuple[str, Shown]]:
        """What a look shows, and what the stored positions show behind it."""
        if (self.name, process) not in READ_WITHOUT_A_LOOK:
            seen = self._looking.seen(STREAM)
            places = {writer: seen.position_of(writer) for writer in writers}
            yield "look", self._shown(seen.position, places, seen.token(writers))
            self._store.store(self._looking.cursor, time.monotonic(), everything=True)
        stored = self._stored()
        linear = linear_position(stored.values())
        have = positions_to_show(stored, linear)
        # A writer that has no row has no fact above the linear position.
        places = {writer: position_of(have, writer) if writer in have else linear for writer in writers}
        yield "stored rows", self._shown(linear, places, VectorToken.of(linear, have))

    def _stored(self) -> dict[str, StoredPosition]:
        return stored_positions(self._looking.cursor, [STREAM]).get(STREAM, {})

    def _shown(self, linear: int, places: dict[str, int], token: VectorToken) -> Shown:
        return {
            "linear": linear * self.sign,
            "writers": {writer: at * self.sign for writer, at in places.items()},
            "entries": {writer: at * self.sign for writer, at in token.entries.items()},
        }


class Follower:
    """A follower that was told all positions when it connected. What is told after that are facts."""

    def __init__(self) -> None:
        self._cursors = Cursors()
        self._sent: dict[str, int] = {}

    def rows(self, step: dict[str, Any]) -> None:
        self._sent[step["writer"]] = max(step["ids"])

    def start(self, step: dict[str, Any]) -> None:
        self._cursors.start(STREAM, min(self._sent.values()), self._sent)
        for writer in step["writers"]:
            self._cursors.apply(Position(STREAM, writer, self._sent[writer], self._sent[writer]))

    def told(self, step: dict[str, Any]) -> None:
        self._cursors.apply(RData(STREAM, step["writer"], step["position"], ["row"]))

    def views(self, process: str, writers: list[str]) -> Iterator[tuple[str, Shown]]:
        linear, places = self._cursors.linear(STREAM), self._cursors.positions()[STREAM]
        entries = {writer: at for writer, at in places.items() if at > linear}
        yield (
            "follower",
            {"linear": linear, "writers": {writer: places[writer] for writer in writers}, "entries": entries},
        )


@pytest.fixture
def make() -> Iterator[Sessions]:
    with sessions() as made:
        yield made
    drop(TABLE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_worked_example(example: dict[str, Any], make: Sessions) -> None:
    stage = Follower() if example["name"] in OF_FOLLOWERS else Stage(example, make)
    for number, step in enumerate(example["steps"], start=1):
        getattr(stage, step["do"])(step)
        for process, expected in step.get("expect", {}).items():
            for where, found in stage.views(process, list(expected["writers"])):
                if example["backward"]:  # the data leaves out the entries there
                    found["entries"] = expected["entries"]
                assert found == expected, f"{example['name']} step {number} {step['do']}: {process} by {where}"


def test_all_fourteen_examples_are_here() -> None:
    assert [example["name"] for example in EXAMPLES] == [f"E{number}" for number in range(1, 15)]
