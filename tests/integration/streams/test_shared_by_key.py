"""``handles(…, by="order_id")``: processes share a reader's facts, each key's in order, once, whoever is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.support.shop import Shop
from tests.support.waiting import DEADLINE_SECONDS, wait_until

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
import os, time
from pathlib import Path
from shop.models import Done, Order
from streams import handles
from streams.follow import Begin, OnFailure


def handler(reader, **options):
    @handles(Order, reader=reader, by="order_id", each=True, begin=Begin.OLDEST, retry_seconds=0.01, attempts=2, **options)
    def handle(order):
        Done.objects.create(reader=reader, order_id=order.order_id, number=order.number, process=os.getpid())
        if order.number == 666 and Path("poison").exists():
            raise ValueError("poison")
        if Path("wait").exists():
            time.sleep(float(Path("wait").read_text()))


handler("mailer")
handler("parker", on_failure=OnFailure.PARK)
"""
SET_UP = "import django; django.setup()\n"
APPEND = """
import random, sys
from django.db import transaction
from shop.models import Order
count, keys, seed = map(int, sys.argv[1:])
chance = random.Random(seed)
while count > 0:
    with transaction.atomic():
        for _ in range(min(count, chance.randrange(1, 20))):
            Order.objects.create(order_id=str(chance.randrange(keys)), number=count)
            count -= 1
"""
#: Readers as threads of one process. Each has sessions of its own, as a process would.
THREADS = """
import threading
from shop import handlers
from shop.models import Done, Order
from streams.follow import Begin, Handler, Reader, handlers_of
from streams.follow.part_source import PartSource
from streams.models import ParkedFact, PartCursor, StoredCursor

read = [0]
facts = PartSource.facts


def counted(self, wanted):
    found = facts(self, wanted)
    read[0] += sum(len(fact.rows) for fact in found)
    return found


PartSource.facts = counted


def catch_up(name, count=1):
    errors = []

    def run():
        try:
            Reader(name).catch_up()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def by_key(rows):
    found = {}
    for key, number in rows:
        found.setdefault(key, []).append(number)
    return found


def told(reader):
    return by_key(Done.objects.filter(reader=reader).order_by("id").values_list("order_id", "number"))


def appended():
    return by_key(Order.objects.order_by("stream_id").values_list("order_id", "number"))
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

# A part that is behind holds back the reader's position, and so trimming.
Order.objects.create(order_id="x", number=1)
before = StoredCursor.objects.get().base
catch_up("mailer")
assert StoredCursor.objects.get().base > before
print("ok")
"""
POISON = """
from pathlib import Path
from streams.follow import retry_parked

Path("poison").touch()
for number in range(20):
    for key in "abcdefgh":
        Order.objects.create(order_id=key, number=number)
    if number == 9:
        Order.objects.create(order_id="c", number=666)
for reader in ("mailer", "parker"):
    catch_up(reader, 3)
    assert {key: numbers for key, numbers in told(reader).items() if key != "c"} == {key: [*range(20)] for key in "abdefgh"}
# The key stops behind its poisonous fact, or goes on without it.
assert told("mailer")["c"] == [*range(10)]
assert told("parker")["c"] == [*range(20)]
parked = ParkedFact.objects.filter(reader="mailer")
assert [one.rows[0]["number"] for one in parked] == [666, *range(10, 20)]
assert [one.attempts for one in parked] == [2] + [0] * 10
assert "an earlier fact of its key 'c'" in parked[1].error
assert ParkedFact.objects.filter(reader="parker").count() == 1
Order.objects.create(order_id="c", number=20)
catch_up("mailer")
assert parked.all().count() == 12
assert (found := retry_parked("mailer")) == (0, 1), found  # the first fails again, the others wait for it
assert told("mailer")["c"] == [*range(10)]
Path("poison").unlink()
assert retry_parked("mailer") == (12, 0)
Order.objects.create(order_id="c", number=21)
catch_up("mailer")
assert told("mailer")["c"] == [*range(10), 666, *range(10, 22)]
assert not parked.all().exists()
print("ok")
"""
CHANGES = """
from streams.errors import BadHandler, ReaderNameTaken
from streams.follow import forget_reader, resync_reader
from streams.follow.lease import ReaderLock

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
print("ok")
"""
STANDING = """
SELECT count(*) FROM pg_stat_activity
WHERE state = 'idle in transaction' AND state_change < clock_timestamp() - interval '0.5 s' AND datname = current_database()
"""


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    files = {"shop/models.py": MODELS, "shop/handlers.py": HANDLERS}
    made = Shop(tmp_path, f"{database_url}?options=-csearch_path%3Dshared", files)
    made.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA shared")
    try:
        made.run("-m", "django", "makemigrations", "shop")
        made.run("-m", "django", "migrate")
        yield made
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA shared CASCADE")


def query(sql: str) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def handled() -> dict[str, list[int]]:
    return dict(query("SELECT order_id, array_agg(number ORDER BY id) FROM shared.shop_done GROUP BY 1"))


def appended() -> dict[str, list[int]]:
    return dict(query("SELECT order_id, array_agg(number ORDER BY stream_id) FROM shared.shop_order GROUP BY 1"))


def count_by(process: int) -> int:
    return int(query(f"SELECT count(*) FROM shared.shop_done WHERE process = {process}")[0][0])


@pytest.mark.parametrize("script", [SHARED, POISON, CHANGES], ids=["shared", "poison", "changes"])
def test_rules_of_sharing(shop: Shop, script: str) -> None:
    assert "ok" in shop.run("-c", SET_UP + THREADS + script).split()


@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_processes_are_killed_at_random_and_each_key_is_handled_once_and_in_order(shop: Shop, kills: int) -> None:
    chance = random.Random(kills)
    (shop.folder / "wait").write_text("0.002")
    writers = [shop.start("-c", SET_UP + APPEND, str(150 * kills), "40", str(seed)) for seed in range(2)]
    running = [shop.start("manage.py", "runhandlers", "mailer") for _ in range(3)]
    try:
        for _ in range(kills):
            place = chance.randrange(len(running))
            process = running[place]
            wait_until(lambda pid=process.pid: count_by(pid) > 0 or handled() == appended())
            time.sleep(chance.random() * 0.2)
            process.kill()
            process.wait()
            running[place] = shop.start("manage.py", "runhandlers", "mailer")
        for writer in writers:
            assert writer.wait(4 * DEADLINE_SECONDS) == 0
    finally:
        for process in (*writers, *running):
            process.kill()
            process.communicate()
    shop.run("manage.py", "runhandlers", "mailer", "--once")
    assert handled() == appended()
    assert sum(map(len, handled().values())) == 300 * kills


def test_a_process_that_joins_works_at_once_and_one_that_is_killed_leaves_its_parts(shop: Shop) -> None:
    (shop.folder / "wait").write_text("0.005")
    shop.run("-c", SET_UP + APPEND, "6000", "500", "1")
    first = shop.start("manage.py", "runhandlers", "mailer")
    second = None
    try:
        wait_until(lambda: count_by(first.pid) > 0)
        second = shop.start("manage.py", "runhandlers", "mailer")
        assert second.stdout is not None
        assert second.stdout.readline().strip() == "ready readers=mailer"
        began = time.monotonic()
        wait_until(lambda: count_by(second.pid) > 0)
        assert time.monotonic() - began < 1
        (shop.folder / "wait").write_text("1000")  # it keeps its parts until it is killed
        wait_until(lambda: query(STANDING) == [(2,)])
        (shop.folder / "wait").write_text("0")
        first.kill()
        second.kill()
        shop.run("manage.py", "runhandlers", "mailer", "--once")
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.communicate()
    assert handled() == appended()
