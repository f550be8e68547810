"""``handles(…, by="order_id")``: processes share a reader's facts, each key's in order, once, whoever is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from streams.follow.part_cursors import PartCursors
from streams.follow.part_plan import PARTS
from streams.holds.hold import CHANGE_FACTS
from streams.models import StoredCursor
from streams.models.readers import PartCursor
from tests.support.forking_shop import ForkingShop
from tests.support.waiting import wait_until
from tests.support.writing import in_thread

pytestmark = pytest.mark.django_db(transaction=True)
MODELS = """
from django.db import models
from streams import Fact, stream


@stream("orders")
class Order(Fact):
    order_id = models.TextField(null=True)
    number = models.IntegerField()


class Done(models.Model):
    reader = models.TextField()
    order_id = models.TextField(null=True)
    number = models.IntegerField()
    process = models.IntegerField()
"""
HANDLERS = """
import os, sys, time
from pathlib import Path
from django.db import connection
from shop.models import Done, Order
from streams import handles
from streams.follow import Begin, OnFailure


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


#: What the handler does with a fact of this number.
HOSTILE = {
    -1: lambda: sys.exit(0),
    -2: lambda: connection.close(),
    -3: lambda: execute("SELECT pg_terminate_backend(pg_backend_pid())"),
    -4: lambda: execute("ROLLBACK"),
    -5: lambda: connection.connection.rollback(),
}


def handler(reader, **options):
    @handles(Order, reader=reader, by="order_id", each=True, begin=Begin.OLDEST, retry_seconds=0.01, attempts=2, **options)
    def handle(order, using="default"):
        done = Done(reader=reader, order_id=order.order_id, number=order.number, process=os.getpid())
        done.save(using=using)
        if order.number == 666 and Path("poison").exists():
            raise ValueError("poison")
        HOSTILE.get(order.number, int)()
        if order.number == 777 and Path("hold").exists():
            time.sleep(1000)
        if Path("wait").exists():
            time.sleep(float(Path("wait").read_text()))

    return handle


mail = handler("mailer")
handler("parker", on_failure=OnFailure.PARK)
"""
APPEND = """
import random
from django.db import transaction
from shop.models import Order
chance, left = random.Random({seed}), {count}
while left > 0:
    with transaction.atomic():
        for _ in range(min(left, chance.randrange(1, 20))):
            Order.objects.create(order_id=str(chance.randrange({keys})), number=left)
            left -= 1
"""
RUN = """
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "runhandlers", "mailer"])
"""
#: Readers as threads of one process. Each has sessions of its own, as a process would.
THREADS = """
import threading, time
from contextlib import contextmanager
from pathlib import Path
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from shop import handlers
from shop.models import Done, Order
from streams.follow import Begin, Handler, Reader, handlers_of, parked_facts, retry_parked
from streams.follow.part_source import PartSource
from streams.models import ParkedFact, PartCursor, StoredCursor

settings.REPLSITE_HEARTBEAT_SECONDS = 0.25
read = [0]
facts = PartSource.facts


def counted(self, wanted):
    found = facts(self, wanted)
    read[0] += sum(len(fact.rows) for fact in found)
    return found


PartSource.facts = counted


@contextmanager
def in_threads(calls):
    errors = []

    def run(call):
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
    assert not errors, errors


def catch_up(name, count=1, of=None):
    with in_threads([Reader(name, of).catch_up for _ in range(count)]):
        pass


def by_key(rows):
    found = {}
    for key, number in rows:
        found.setdefault(key, []).append(number)
    return found


def told(reader, using="default"):
    return by_key(Done.objects.using(using).filter(reader=reader).order_by("id").values_list("order_id", "number"))


def appended():
    return by_key(Order.objects.order_by("stream_id", "id").values_list("order_id", "number"))


def append(keys, numbers):
    for number in numbers:
        for key in keys:
            Order.objects.create(order_id=key, number=number)


def keys_of_parts():
    from streams.follow.part_keys import part_sql

    found = {}
    with connections["default"].cursor() as cursor:
        cursor.execute(f"SELECT key, {part_sql('key')} FROM generate_series(1, 300) AS n, CAST(n AS text) AS key")
        for key, part in cursor.fetchall():
            found.setdefault(part, []).append(key)
    return found
"""
SHARED = """
chance = __import__("random").Random(1)
Order.objects.bulk_create([Order(order_id=str(chance.randrange(300)), number=n) for n in range(3000)])
Order.objects.create(order_id=None, number=1)
Order.objects.create(order_id=None, number=2)
catch_up("mailer", 4)
assert told("mailer") == appended()
assert read[0] <= 1.2 * 3002, read
(stored,) = StoredCursor.objects.all()
assert {part.position for part in PartCursor.objects.all()} == {stored.base}, stored.base
assert (stored.facts_handled, stored.ended_at is not None) == (3002, True), stored.facts_handled
assert PartCursor.objects.count() == 64
catch_up("mailer", 2)
assert Done.objects.count() == 3002
"""
POISON = """
Path("poison").touch()
append("abcdefgh", range(10))
append("cf", [666])
append("abcdefgh", range(10, 20))
for reader in ("mailer", "parker"):
    catch_up(reader, 3)
    assert all(told(reader)[key] == [*range(20)] for key in "abdegh")
# A key stops behind its poisonous fact, or goes on without it.
assert [told("mailer")[key] for key in "cf"] == [[*range(10)]] * 2
assert [told("parker")[key] for key in "cf"] == [[*range(20)]] * 2
parked = parked_facts("mailer", "orders").filter(key="c")
assert [one.rows[0]["number"] for one in parked] == [666, *range(10, 20)]
assert [one.attempts for one in parked] == [2] + [0] * 10
assert "an earlier fact of its key 'c'" in parked[1].error
counts = StoredCursor.objects.order_by("reader").values_list("facts_handled", "facts_parked")
assert [*counts] == [(140, 22), (160, 2)], counts
assert [ParkedFact.objects.filter(reader=reader).count() for reader in ("mailer", "parker")] == [22, 2]
append("c", [20])
catch_up("mailer")
assert parked.all().count() == 12
assert (found := retry_parked("mailer")) == (0, 2), found  # the first of each fails again, the others wait for it
assert told("mailer")["c"] == [*range(10)]

# Processes that run are asked to.
Path("poison").unlink()
from streams.follow import ask_retry
readers = [Reader("mailer") for _ in range(2)]
with in_threads([reader.run for reader in readers]):
    ask_retry("mailer", by="ann")
    deadline = time.monotonic() + 60
    while not (said := StoredCursor.objects.get(reader="mailer").retry_result) and time.monotonic() < deadline:
        time.sleep(0.05)
    for reader in readers:
        reader.stop()
assert said == "23 handled, 0 failed again, 0 left", said
append("c", [21])
catch_up("mailer")
assert told("mailer") == appended()
"""
LOOSE = """
from shop.handlers import execute
from streams.errors import BadHandler
try:
    execute("ALTER TABLE shop_order ALTER order_id TYPE char(9)")
    append(["a", "a "], range(3))
    Reader("mailer").catch_up()
except BadHandler as error:
    assert "order_id, which has its keys, is of type bpchar" in str(error), error
else:
    raise AssertionError(f"not refused: {told('mailer')}")
finally:
    execute("ALTER TABLE shop_order ALTER order_id TYPE text")  # other scripts have the same table
"""
#: What a handler does to its transaction, session or thread with one fact is that fact's failure: it is parked, and others go on.
ENDS = """
import logging
from shop.handlers import HOSTILE

logged = []
log = logging.getLogger("streams.follow.parts_loop")
log.addHandler(type("Kept", (logging.Handler,), {"emit": lambda self, record: logged.append(record.msg)})())
keys = [keys[0] for keys in keys_of_parts().values()][:8]
append(keys, range(3))
for key, number in zip(keys, HOSTILE):
    Order.objects.create(order_id=key, number=number)
append(keys, range(3, 6))
catch_up("parker")
assert told("parker") == {key: [*range(6)] for key in keys}, told("parker")
parked = {one.rows[0]["number"]: one for one in parked_facts("parker", "orders")}
assert parked.keys() == HOSTILE.keys(), parked
assert sum("reader.fact_parked" in str(line) for line in logged) == len(parked), logged
# A session that was ended may have its part for a while longer, and then there are more attempts.
attempts = {number: one.attempts for number, one in parked.items()}
assert {number: attempts[number] for number in (-1, -4, -5)} == {-1: 2, -4: 2, -5: 2} and min(attempts.values()) == 2, attempts
assert all("ended its transaction itself" in parked[number].error for number in (-2, -4, -5)), parked[-4].error
catch_up("mailer", 2)
assert all(told("mailer")[key] == [*range(6)] for key in keys[len(HOSTILE):])
assert all(told("mailer")[key] == [*range(3)] for key in keys[:len(HOSTILE)])
"""
CHANGES = """
from streams.errors import BadHandler, ReaderNameTaken
from streams.follow import forget_reader, lease, resync_reader
from streams.follow.lease import ReaderLock

lease.ENDING_SECONDS = 0.1

seen = []


def plain(*, by=""):
    handler = Handler("orders", "mailer", lambda one: seen.append(one.number), each=True, by=by, begin=Begin.OLDEST)
    return Reader("mailer", [handler])


def refused(call, kind, text):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)


for number in range(5):
    Order.objects.create(order_id=str(number), number=number)
catch_up("mailer")
assert plain().catch_up() == 0 and not PartCursor.objects.exists()  # without by from now on
Order.objects.create(order_id="1", number=5)
assert plain().catch_up() == 1 and seen == [5]
Order.objects.create(order_id="1", number=6)
catch_up("mailer")
assert told("mailer")["1"] == [1, 6]
assert plain(by="number").catch_up() == 0
catch_up("mailer")
PartCursor.objects.filter(part=3).update(position=3)
for other in (plain(), plain(by="number")):
    refused(other.catch_up, BadHandler, "let it catch up first")
catch_up("mailer")
assert plain().catch_up() == 0
for by in ("status", "received_at"):
    refused(lambda: plain(by=by), BadHandler, "cannot be shared")
refused(lambda: Reader("mailer", [*handlers_of("mailer"), Handler("orders", "mailer", print)]), BadHandler, "of their own")

# While a process shares the reader, nobody may run it alone, set it, or forget it.
catch_up("mailer")
held = ReaderLock("mailer", "default", dict)
held.shared = True
held.acquire()
for call in (plain().catch_up, lambda: resync_reader("mailer"), lambda: forget_reader("mailer")):
    refused(call, ReaderNameTaken, "is run by process")
refused(plain(by="number").catch_up, BadHandler, "Stop them first")
catch_up("mailer")
held.release()

before = told("mailer")
Order.objects.create(order_id="1", number=7)
resync_reader("mailer")
catch_up("mailer")
assert told("mailer") == before
Order.objects.create(order_id="1", number=8)
catch_up("mailer")
assert told("mailer")["1"][-1] == 8
assert [one.stream for one in forget_reader("mailer")] == ["orders"]
assert not PartCursor.objects.exists()
"""
ROWS = """
# A fact of several rows is handled once for each of its keys, also if it is poisonous for one of them.
(first, second, *_), (third, *_), *_ = (keys for keys in keys_of_parts().values() if len(keys) > 1)
Path("poison").touch()
for number in (1, 666):
    with Order.stream.reserve() as reserved:
        rows = [(first, 1), (second, number), (third, 3), (second, 4), (first, 5)]
        reserved.write(*(Order(stream_id=reserved.ids[0], order_id=key, number=n) for key, n in rows))
catch_up("mailer", 2)
assert told("mailer") == {first: [1, 5] * 2, second: [1, 4], third: [3] * 2}, told("mailer")
(parked,) = parked_facts("mailer")
assert [row["number"] for row in parked.rows] == [666, 4]
Path("poison").unlink()
assert retry_parked("mailer") == (1, 0)
assert told("mailer") == appended()
"""
#: A row that ends the session takes along the rows of its fact whose keys are in its part: all are parked, and no other.
ENDS_OF_ROWS = """
(first, second, *_), (third, *_), *_ = (keys for keys in keys_of_parts().values() if len(keys) > 1)
for number in (1, -3, 2):
    with Order.stream.reserve() as reserved:
        rows = [(first, 4), (second, number), (third, 5), (None, 6)]
        reserved.write(*(Order(stream_id=reserved.ids[0], order_id=key, number=n) for key, n in rows))
catch_up("parker", 2)
assert told("parker") == {first: [4] * 2, second: [1, 2], third: [5] * 3, None: [6] * 3}, told("parker")
catch_up("mailer", 2)
assert told("mailer") == {first: [4], second: [1], third: [5] * 3, None: [6] * 3}, told("mailer")
"""
#: A crash can take back IDs above the last fact, and a pooler then gives the handler another session. So a part is passed over
#: what was seen empty only by a statement that checks whether the session lives that has looked.
TAKEN_BACK = """
from streams.follow.asked_retries import AskedRetries
from streams.follow.parts_loop import PartsLoop
from streams.follow.stored_cursors import Owner
from streams.reading.looker import look_now
(handler,), owner = handlers_of("mailer"), Owner("mailer", 1, "host", 1)
loop = PartsLoop(handler, owner, threading.Event(), print, AskedRetries(handler, owner, lambda stream: None))
append("a", [1])
(token,) = Order.objects.values_list("stream_id", flat=True)
with connections["default"].cursor() as cursor:
    cursor.execute("BEGIN; INSERT INTO shop_order (order_id, number) VALUES ('a', 2); ROLLBACK")
    look_now("default", even_if_led=True)
    loop._open_delivery()
    assert loop._widen() and loop._window.upto > token
    loop._read_parts()
    cursor.execute("UPDATE streams_partcursor SET position = %s", [token])  # another process handled it
loop._work()
positions = {*PartCursor.objects.values_list("position", flat=True)}
assert positions == {token}, (positions, token)
"""
ONE_SNAPSHOT = """
connections["default"].settings_dict["OPTIONS"]["options"] += r" -cdefault_transaction_isolation=repeatable\\ read"
"""
ELSEWHERE = """
with connections["default"].cursor() as cursor:
    cursor.execute("CREATE SCHEMA shared_service")
connections.settings["service"] = connections.settings["default"] | {"OPTIONS": {"options": "-csearch_path=shared_service"}}
call_command("migrate", database="service", verbosity=0)
away = Handler(
    "orders", "mailer", lambda order: handlers.mail(order, using="service"), each=True, by="order_id", using="service",
    begin=Begin.OLDEST, attempts=1,
)
Path("poison").touch()
append("abcdef", range(10))
append("c", [666, 667])
append("abcdef", range(10, 20))
catch_up("mailer", 3, [away])
assert told("mailer", "service") == appended() | {"c": [*range(10)]}
assert parked_facts("mailer").using("service").count() == 12
assert not any(model.objects.exists() for model in (Done, PartCursor, StoredCursor, ParkedFact))
assert PartCursor.objects.using("service").count() == 64
"""
#: A part is behind while one process handles 777.
BEHIND = """
import json
from io import StringIO
from streams.models import LowWaterMark


def reader():
    call_command("streams", "--json", "--now", stdout=(told := StringIO()))
    (found,) = (one for one in json.loads(told.getvalue())["readers"] if one["name"] == "mailer")
    (of_stream,) = found["streams"]
    return of_stream


def trim():
    call_command("purge", "stream", "orders", "--keep", "0", stdout=StringIO())
    return Order.objects.count()


"""
STANDING = """
SELECT count(*) FROM pg_stat_activity
WHERE state = 'idle in transaction' AND state_change < clock_timestamp() - interval '0.5 s' AND datname = current_database()
"""
TABLES = "shop_order", "shop_done", "streams_storedcursor", "streams_partcursor", "streams_parkedfact", "streams_reader"


@pytest.fixture(scope="module")
def made_shop(
    tmp_path_factory: pytest.TempPathFactory, url_of_test_database: str, django_db_setup: None, django_db_blocker: Any
) -> Iterator[ForkingShop]:
    def execute(sql: str) -> None:
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(sql)

    files = {"shop/models.py": MODELS, "shop/handlers.py": HANDLERS}
    execute("CREATE SCHEMA shared")
    made = ForkingShop(tmp_path_factory.mktemp("shop"), f"{url_of_test_database}?options=-csearch_path%3Dshared", files)
    try:
        made.do("from django.core.management import call_command\ncall_command('makemigrations', 'shop')")
        made.do("from django.core.management import call_command\ncall_command('migrate')")
        yield made
    finally:
        made.close()
        execute("DROP SCHEMA IF EXISTS shared, shared_service CASCADE")


@pytest.fixture
def shop(made_shop: ForkingShop) -> Iterator[ForkingShop]:
    yield made_shop
    made_shop.kill_all()
    for name in ("poison", "hold", "wait"):
        (made_shop.folder / name).unlink(missing_ok=True)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("; ".join([CHANGE_FACTS, *(f"DELETE FROM shared.{table}" for table in TABLES)]))


def query(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def handled() -> dict[str, list[int]]:
    return dict(query("SELECT order_id, array_agg(number ORDER BY id) FROM shared.shop_done GROUP BY 1"))


def appended() -> dict[str, list[int]]:
    return dict(query("SELECT order_id, array_agg(number ORDER BY stream_id) FROM shared.shop_order GROUP BY 1"))


def count_by(process: int) -> int:
    return int(query(f"SELECT count(*) FROM shared.shop_done WHERE process = {process}")[0][0])


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(SHARED, id="shared"),
        pytest.param(POISON, id="poison"),
        pytest.param(LOOSE, id="a column in which other values are equal"),
        pytest.param(ENDS, id="ends of transaction, session and thread"),
        pytest.param(ROWS, id="rows"),
        pytest.param(ENDS_OF_ROWS, id="ends of rows"),
        pytest.param(CHANGES, id="changes"),
        pytest.param(TAKEN_BACK, id="what a crash takes back"),
        pytest.param(ONE_SNAPSHOT + SHARED, id="shared in one snapshot"),
        pytest.param(ONE_SNAPSHOT + POISON, id="poison in one snapshot", marks=pytest.mark.scenario),
        pytest.param(ELSEWHERE, id="effects elsewhere"),
    ],
)
def test_rules_of_sharing(shop: ForkingShop, script: str) -> None:
    shop.do(THREADS + script)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.scenario)])
def test_processes_are_killed_at_random_and_each_key_is_handled_once_and_in_order(
    shop: ForkingShop, kills: int
) -> None:
    chance = random.Random(kills)
    (shop.folder / "wait").write_text("0.002")
    writers = [shop.fork(APPEND.format(seed=seed, count=150 * kills, keys=40)) for seed in range(2)]
    running = [shop.fork(RUN) for _ in range(3)]
    for _ in range(kills):
        place = chance.randrange(len(running))
        wait_until(lambda pid=running[place].pid: count_by(pid) > 0 or handled() == appended())
        time.sleep(chance.random() * 0.2)
        running[place].kill()
        running[place] = shop.fork(RUN)
    for writer in writers:
        writer.ended()
    wait_until(lambda: sum(map(len, handled().values())) >= 300 * kills)
    assert handled() == appended()


def test_a_process_that_joins_works_and_what_one_is_at_is_the_lag_and_is_not_trimmed(shop: ForkingShop) -> None:
    (shop.folder / "hold").touch()
    shop.do(THREADS + "append('a', [777])")
    first = shop.fork(RUN)
    wait_until(lambda: query(STANDING) == [(1,)])  # it keeps the part until it is killed
    shop.do(THREADS + "append([keys[0] for keys in keys_of_parts().values()], range(2))")
    second = shop.fork(RUN)
    wait_until(lambda: count_by(second.pid) >= 126)
    shop.do(
        THREADS
        + BEHIND
        + """
wait = time.monotonic() + 60
while (behind := reader())["lag_seconds"] < 1 and time.monotonic() < wait:
    time.sleep(0.1)
(oldest, *others) = Order.objects.order_by("stream_id")
assert behind["position"] < oldest.stream_id and behind["lag_facts"] == 1 + len(others) and behind["lag_seconds"] >= 1, behind
assert trim() == 129
"""
    )
    (shop.folder / "hold").unlink()
    first.kill()
    wait_until(lambda: handled() == appended())
    shop.do(
        THREADS
        + BEHIND
        + """
wait = time.monotonic() + 60
while (behind := reader())["lag_facts"] and time.monotonic() < wait:
    time.sleep(0.1)
assert (behind["lag_facts"], behind["lag_seconds"]) == (0, 0), behind
while (left := trim()) and time.monotonic() < wait:  # the reader's cursor follows those of its parts at the next tick
    time.sleep(0.1)
assert left == 0
"""
    )


def test_two_processes_that_begin_at_the_same_time_share(monkeypatch):
    """The second one sees no parts, and then those that the first has created meanwhile."""
    StoredCursor.objects.create(reader="mailer", stream="caches", base=1)
    cursors, read, begun = PartCursors("mailer", "caches", "cache_name"), PartCursors.all, []

    def begin() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursors.begin(cursor, {}, is_alone=False)

    def read_late(self: PartCursors, cursor: Any) -> list[Any]:
        found = read(self, cursor)
        if not begun:
            begun.append(True)
            in_thread(begin).join()
        return found

    monkeypatch.setattr(PartCursors, "all", read_late)
    begin()
    assert PartCursor.objects.filter(by_field="cache_name", position=1).count() == PARTS
