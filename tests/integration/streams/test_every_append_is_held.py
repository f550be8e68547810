"""Every append to every stream of the program is held, whichever way its IDs were taken: no look passes a fact to come."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction

from streams import registry
from streams.core.declaration import FactTable, quoted
from streams.db import driver
from streams.errors import ReservationEnded
from streams.holds.hold import WRITE_AS, hold_sql
from streams.holds.look import Seen, holders, look
from streams.load_generator import generator
from streams.maintenance.check import inspect_holds, repair_holds
from tests.support.waiting import wait_until
from tests.support.writing import linear, looked, session

pytestmark = pytest.mark.django_db(transaction=True)
NAMES = [
    stream.name for stream in registry.all_streams() if stream.declaration.tables[0].name[:7] in ("streams", "events_")
]
ROUNDS = 3
THREADS = 3


class Back(Exception):
    """What is rolled back."""


# --- ways to append -----------------------------------------------------------------------------------------------


def one(name: str, chance: random.Random) -> None:
    generator(name, chance.randrange(100)).append(1)


def several(name: str, chance: random.Random) -> None:
    generator(name, chance.randrange(100)).append(chance.randrange(2, 9))


def inside(name: str, chance: random.Random) -> None:
    with transaction.atomic():
        several(name, chance)
        other = chance.choice(NAMES)
        one(other, chance)
        rolled_back_to_a_savepoint(name, chance)
        one(name, chance)


def rolled_back(name: str, chance: random.Random) -> None:
    with pytest.raises(Back), transaction.atomic():
        several(name, chance)
        raise Back


def rolled_back_to_a_savepoint(name: str, chance: random.Random) -> None:
    with transaction.atomic():
        with pytest.raises(Back), transaction.atomic():
            several(name, chance)
            raise Back
        one(name, chance)


def reserved(name: str, chance: random.Random) -> None:
    """More IDs than facts, of two streams, taken at once and written later."""
    stream = registry.get(name)
    with transaction.atomic(), stream.reserve(3), registry.get("caches").reserve(2) as others:
        connection.cursor().execute("SELECT pg_sleep(0.001)")
        one(name, chance)
        others.write(registry.get("caches").models[0](cache_name="reserved", keys=None))


def reserved_in_a_savepoint_that_went(name: str, chance: random.Random) -> None:
    with transaction.atomic():
        with pytest.raises(Back), transaction.atomic():
            reservation = registry.get("caches").reserve(2).__enter__()
            raise Back
        one(name, chance)
        # It holds where the savepoint was not the first to append to this stream.
        if name != "caches":
            with pytest.raises(ReservationEnded):
                reservation.write(registry.get("caches").models[0](cache_name="late", keys=None))


def imported(name: str, chance: random.Random) -> None:
    """As a task of an import: holds, takes more IDs than it uses, and works between that and its rows."""
    declaration, sign = registry.get(name).declaration, registry.get(name).sign
    with session() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT {WRITE_AS}", {"writer": "import"})
        cursor.execute(hold_sql(declaration))
        cursor.execute("SELECT nextval(%s) FROM generate_series(1, 3)", [declaration.sequence])
        taken = [row[0] for row in cursor.fetchall()]
        cursor.execute("SELECT pg_sleep(0.001)")
        for number in taken[:2]:
            copy_a_fact(cursor, name, sign * number, "import")
        cursor.execute(chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]))


def plain_sql(name: str, chance: random.Random) -> None:
    """A client of any language, which names a writer or none, and leaves the ID to the table."""
    with session() as cursor:
        cursor.execute("BEGIN")
        if writer := chance.choice(["", "sql", "north"]):
            cursor.execute(f"SET LOCAL streams.writer = '{writer}'")
        if registry.get(name).declaration.backward:  # the table's default is an ID of the other stream
            cursor.execute(hold_sql(registry.get(name).declaration))
            cursor.execute("SELECT -nextval(%s)", [registry.get(name).declaration.sequence])
            copy_a_fact(cursor, name, cursor.fetchone()[0], writer or "master")
        else:
            copy_a_fact(cursor, name, None, writer or "master")
        cursor.execute(chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]))


def copy_a_fact(cursor: Any, name: str, number: int | None, writer: str) -> None:
    """Inserts a row with the content of another one."""
    (table, *_) = registry.get(name).declaration.tables
    (model, *_) = registry.get(name).models
    ours = {table.id_column, table.writer_column, "id", "event_id"}
    columns = [quoted(str(field.column)) for field in model._meta.concrete_fields if field.column not in ours]
    values = list(columns)
    if any(field.column == "event_id" for field in model._meta.concrete_fields):
        columns, values = [*columns, "event_id"], [*values, "'$' || gen_random_uuid()"]
    if number is not None:
        columns = [table.id_column, table.writer_column, *columns]
        values = [str(number), f"'{writer}'", *values]
    cursor.execute(
        f"INSERT INTO {table.name} ({', '.join(columns)}) "
        f"SELECT {', '.join(values)} FROM {table.name} WHERE {where(table)} LIMIT 1"
    )
    assert cursor.rowcount == 1, name


WAYS: list[Callable[[str, random.Random], None]] = [
    one, several, inside, rolled_back, rolled_back_to_a_savepoint, reserved, reserved_in_a_savepoint_that_went, imported,
    plain_sql,
]  # fmt: skip


# --- looking ------------------------------------------------------------------------------------------------------


def where(table: FactTable) -> str:
    return table.where or "true"


def facts(cursor: Any, name: str) -> set[tuple[int, str]]:
    """All facts of a stream: token and writer."""
    declaration = registry.get(name).declaration
    found: set[tuple[int, str]] = set()
    for table in declaration.tables:
        cursor.execute(
            f"SELECT {declaration.sign} * {table.id_column}, {table.writer_column} FROM {table.name} WHERE {where(table)}"
        )
        found.update(cursor.fetchall())
    return found


@dataclass
class Looker:
    """Looks again and again, and reads the rows in a later statement."""

    over: threading.Event = field(default_factory=threading.Event)
    looks: dict[str, list[tuple[Seen, set[tuple[int, str]]]]] = field(default_factory=lambda: defaultdict(list))
    failed: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        try:
            with session() as cursor:
                while not self.over.is_set():
                    for name, seen in look(cursor, NAMES).items():
                        self.looks[name].append((seen, facts(cursor, name)))
        except BaseException as error:
            self.failed.append(error)
            raise


@pytest.fixture
def looker() -> Iterator[Looker]:
    looking = Looker()
    thread = threading.Thread(target=looking.run)
    thread.start()
    yield looking
    looking.over.set()
    thread.join()


def in_threads(*works: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_no_look_passes_a_fact_to_come(looker: Looker):
    for name in NAMES:
        generator(name, 0).append(1)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(ROUNDS):
            turns = [(name, way) for name in NAMES for way in chance.sample(WAYS, 3)]
            chance.shuffle(turns)
            for name, way in turns:
                try:
                    way(name, chance)
                except (
                    OperationalError
                ) as error:  # two transactions may keep the newest fact of two users, in both orders
                    assert error.__cause__ and driver.sqlstate(error.__cause__) == "40P01", error

    in_threads(*(partial(work, seed) for seed in range(THREADS)))
    looker.over.set()
    with session() as cursor:
        for name, looks in looker.looks.items():
            in_the_end = facts(cursor, name)
            writers = {writer for _, writer in in_the_end}
            for seen, read in looks:
                missed = {fact for fact in in_the_end - read if fact[0] <= seen.position}
                assert not missed, (name, seen, missed)
                for writer in writers:
                    upto = seen.position_of(writer)
                    assert upto >= seen.position
                    missed = {fact for fact in in_the_end - read if fact[0] <= upto and fact[1] == writer}
                    assert not missed, (name, writer, seen, missed)
    assert not looker.failed
    assert any(seen.position < seen.given for looks in looker.looks.values() for seen, _ in looks), "nobody was open"
    assert looked(lambda cursor: holders(cursor, NAMES)) == []
    for name in NAMES:
        generator(name, 0).append(1)  # what a session of SQL did, the writers learn with their next append
    quiet = looked(lambda cursor: look(cursor, NAMES))
    assert all(seen.position == seen.given for seen in quiet.values())
    wait_until(lambda: {name: linear(name) for name in NAMES} == {name: seen.position for name, seen in quiet.items()})


def test_nothing_weakens_the_holds_of_the_program():
    with session() as cursor, session() as other:
        assert [one for one in inspect_holds(cursor, other) if one.loses and one.stream in {*NAMES, ""}] == []


@pytest.mark.parametrize(
    ("table", "broken"),
    [
        ("events_event", "DROP TRIGGER {hold} ON events_event"),
        ("events_event", "DROP TRIGGER {guard} ON events_event"),
        ("streams_cacheinvalidation", "DROP TRIGGER streams_refuse ON streams_cacheinvalidation"),
        ("streams_presence", "DROP TRIGGER {guard} ON streams_presence"),
    ],
)
def test_the_fix_of_a_trigger_that_is_gone_has_the_options_of_its_table(table: str, broken: str):
    """Another call would let facts be changed, or hold the streams of both signs as one."""
    with session() as cursor, session() as other:

        def triggers() -> list[tuple[str, ...]]:
            cursor.execute(
                "SELECT tgname, tgtype, tgattr::text, CASE WHEN tgname ~ '[0-9]$' THEN encode(tgargs, 'escape') END, tgenabled "
                "FROM pg_trigger "
                "WHERE tgrelid = %s::regclass AND tgname ~ '^streams_' ORDER BY 1", [table])  # fmt: skip
            return list(cursor.fetchall())

        whole = triggers()
        names = [name for name, *_ in whole]
        hold, guard = (
            next(name for name in names if name.startswith(one)) for one in ("streams_hold_", "streams_guard_")
        )
        cursor.execute(broken.format(hold=hold, guard=guard))
        (found,) = [one for one in inspect_holds(cursor, other) if one.loses]
        assert found.fix.endswith(found.statement)
        assert [(one.stream, done) for one, done in repair_holds(cursor, other)] == [(found.stream, "mended")]
        assert triggers() == whole
        assert [one for one in inspect_holds(cursor, other) if one.loses] == []


def test_check_streams_prints_a_statement_that_mends_several_triggers_once(capsys: pytest.CaptureFixture[str]):
    """The statement is long, and a table has several triggers."""
    with session() as cursor, session() as other:
        cursor.execute(
            "SELECT string_agg(format('DROP TRIGGER %I ON streams_cacheinvalidation', tgname), '; ') FROM pg_trigger "
            "WHERE tgrelid = 'streams_cacheinvalidation'::regclass AND tgname ~ '^streams_(guard|refuse)'"
        )
        try:
            cursor.execute(cursor.fetchone()[0])
            weak = [one for one in inspect_holds(cursor, other) if one.loses]
            with pytest.raises(CommandError, match="not in order; --repair mends them"):
                call_command("check_streams")
            said = capsys.readouterr().out
        finally:
            list(repair_holds(cursor, other))
    assert len(weak) > 1 and len({one.fix for one in weak}) == 1, weak
    assert all(one.problem in said for one in weak)
    assert said.count(weak[0].statement) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_goes_around_the_hold_is_refused(name: str):
    generator(name, 0).append(1)
    with session() as cursor:
        cursor.execute("SELECT nextval(%s)", [registry.get(name).declaration.sequence])
        number = cursor.fetchone()[0] * registry.get(name).sign
        with pytest.raises(driver.DatabaseError, match="is refused") as raised:
            copy_a_fact(cursor, name, number, "master")
        assert driver.sqlstate(raised.value) == "23514"
        with pytest.raises(driver.DatabaseError, match="is refused"):
            cursor.execute(f"TRUNCATE {registry.get(name).declaration.tables[0].name}")
