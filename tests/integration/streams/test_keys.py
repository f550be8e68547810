"""Streams with a key: one writer wins, one key's facts are read by an index, only the newest row of a key is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.support.shop import Shop, migrated_shop
from tests.support.waiting import DEADLINE_SECONDS

MODELS = """
from django.db import models
from streams import Fact, stream


class Customer(models.Model):
    name = models.TextField()


@stream("accounts", key="account")
class Entry(Fact):
    account = models.TextField()
    number = models.IntegerField()


@stream("visits", key="customer", newest_per="customer")
class Visit(Fact):
    customer = models.ForeignKey(Customer, models.PROTECT)
    page = models.TextField()


@stream("plain")
class Plain(Fact):
    word = models.TextField()
"""
SET_UP = "import django; django.setup()\n"
RULES = """
import threading
from django.db import connection, connections, transaction
from shop.models import Customer, Entry, Plain, Visit
from streams import VersionConflict
from streams.errors import ForeignFact, InTransaction, TokenError

entries = Entry.stream


def raises(kind, call, text=""):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")


first = entries.append(account="a", number=1, expected=0)
raises(VersionConflict, lambda: entries.append(account="a", number=9, expected=0), "another writer was first")
other = entries.append(account="b", number=1, expected=0)  # another key does not matter
second = entries.append(account="a", number=2, expected=first)
page = entries.read(key="a")
assert [fact.number for fact in page.facts] == [1, 2] and page.at_end
assert [fact.number for fact in entries.read(key="a", limit=1).facts] == [1]
assert [fact.number for fact in entries.read(key="a", newest=True, limit=1).facts] == [2]
assert [fact.number for fact in entries.read(after=entries.read(key="a", limit=1).next, key="a").facts] == [2]
third = entries.append(account="a", number=3, expected=page.facts[-1].token)
raises(VersionConflict, lambda: entries.append(account="a", number=4, expected=page.next))
raises(TokenError, lambda: entries.append(account="a", number=4, expected="x"))
raises(ForeignFact, lambda: entries.append(Entry(account="a", number=4), Entry(account="b", number=4), expected=third))
fourth = entries.append(Entry(account="a", number=4), Entry(account="a", number=5), expected=third)
raises(TypeError, lambda: Plain.stream.append(word="x", expected=0), "has no key")
raises(TypeError, lambda: Plain.stream.read(key="x"), "has no key")

# A conflict does not break the caller's transaction, and own facts of the transaction count.
with transaction.atomic():
    raises(VersionConflict, lambda: entries.append(account="a", number=9, expected=third))
    fifth = entries.append(account="a", number=6, expected=fourth)
    entries.append(account="a", number=7, expected=fifth)
assert [fact.number for fact in entries.read(key="a").facts] == [1, 2, 3, 4, 5, 6, 7]

# After a rollback the key has not moved.
try:
    with transaction.atomic():
        entries.append(account="b", number=2, expected=other)
        raise KeyError
except KeyError:
    pass
entries.append(account="b", number=2, expected=other)

with transaction.atomic():
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    raises(InTransaction, lambda: entries.append(account="c", number=1, expected=0), "repeatable read")

# An append that expects nothing moves the key, too: whoever expects waits for it.
began, result = threading.Event(), []


def expecting():
    began.set()
    try:
        result.append(entries.append(account="d", number=2, expected=0))
    except VersionConflict as error:
        result.append(error)
    finally:
        connections.close_all()


with transaction.atomic():
    entries.append(account="d", number=1)
    thread = threading.Thread(target=expecting)
    thread.start()
    began.wait()
    thread.join(0.5)
    assert thread.is_alive() and not result
thread.join(60)
assert isinstance(result[0], VersionConflict), result

with connection.cursor() as cursor:
    cursor.execute("SET enable_seqscan = off")
    print(Entry.objects.filter(account="a", stream_id__gt=1).order_by("stream_id").explain())
    cursor.execute("RESET enable_seqscan")

ann, bob = Customer.objects.create(name="Ann"), Customer.objects.create(name="Bob")
for page in ("one", "two", "three"):
    Visit.stream.append(customer=ann, page=page)
    Visit.stream.append(Visit(customer=bob, page=page))
assert [(visit.customer.name, visit.page) for visit in Visit.stream.read().facts] == [("Ann", "three"), ("Bob", "three")]
assert [visit.page for visit in Visit.stream.read(key=ann).facts] == ["three"]
assert [visit.page for visit in Visit.stream.read(key=bob.pk).facts] == ["three"]
(visit,) = Visit.stream.read(key=ann).facts
Visit.stream.append(customer=ann, page="four", expected=visit.token)
print("ok")
"""
STRANGER = """
import os
import threading
from contextlib import closing
from django.db import connection, connections
from django.db.backends.postgresql.base import Database
from shop.models import Entry
from streams.db import driver

KEY_STRANGER = f"key_stranger_{os.getpid()}"  # roles belong to the whole server
first = Entry.stream.append(account="a", number=1)


def append(number, **given):
    Entry.stream.append(account="a", number=number, **given)
    connections.close_all()


with connection.cursor() as cursor:
    cursor.execute(f"CREATE ROLE {KEY_STRANGER} LOGIN PASSWORD 'x'")
    mark = driver.schema_mark(cursor)
try:
    with closing(Database.connect(driver.dsn(), user=KEY_STRANGER, password="x")) as stranger:
        stranger.autocommit = True
        taking = "SELECT count(pg_advisory_lock(hashtextextended(%s, n))) FROM generate_series(0, 1023) AS n"
        stranger.cursor().execute(taking, ["replsite.key:accounts" + mark])
        for number, given in ((2, {}), (3, {"expected": None}), (4, {})):
            thread = threading.Thread(target=append, args=[number], kwargs=given)
            thread.start()
            thread.join(60)
            was_alive = thread.is_alive()
            if was_alive:
                stranger.cursor().execute("SELECT pg_advisory_unlock_all()")
                thread.join()
                break
            newest = Entry.stream.read(key="a", newest=True, limit=1).facts[0]
        else:
            append(5, expected=newest.token)
finally:
    connection.cursor().execute(f"DROP ROLE {KEY_STRANGER}")
print("waited" if was_alive else "ok")
"""
LATER = """
from django.db import connections
from shop.models import Entry

connections["default"].settings_dict["DIRECT"] = {"HOST": "127.0.0.1", "PORT": "1"}  # nobody listens there
print(*Entry.stream.append(account="a", number=2))
"""
RACE = """
import random, sys
from django.db import transaction
from shop.models import Entry
from streams import VersionConflict

chance, won, lost = random.Random(int(sys.argv[1])), 0, 0
while won < 30:
    key = str(chance.randrange(40))
    newest = Entry.stream.read(key=key, newest=True, limit=1).facts
    number, expected = (newest[0].number, newest[0].token) if newest else (0, 0)
    try:
        if chance.random() < 0.5:
            Entry.stream.append(account=key, number=number + 1, expected=expected)
        else:
            with transaction.atomic():
                Entry.stream.append(account=key, number=number + 1, expected=expected)
        won += 1
    except VersionConflict:
        lost += 1
print(lost)
"""


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    with migrated_shop(
        tmp_path, database_url, "keys", {"shop/models.py": MODELS}, 'REPLSITE_WRITER = "w-{n}"\n'
    ) as made:
        made.run("-m", "django", "makemigrations", "--check", "shop")
        yield made


def test_rules_of_keys(shop: Shop) -> None:
    plan, done = shop.run("-c", SET_UP + RULES).rsplit("\n", 2)[:2]
    assert done == "ok"
    assert "key_accounts_account" in plan


def test_a_role_without_rights_cannot_hold_the_locks_of_keys(shop: Shop) -> None:
    """They were advisory locks, and appends waited for every role that may connect."""
    assert shop.run("-c", SET_UP + STRANGER).split()[-1] == "ok"


def test_only_the_first_process_that_appends_makes_the_locks_of_keys(shop: Shop) -> None:
    """On a connection of its own, which no later process needs."""
    shop.run("-c", SET_UP + "from shop.models import Entry; Entry.stream.append(account='a', number=1)")
    assert int(shop.run("-c", SET_UP + LATER).split()[-1]) > 1


def test_one_writer_wins_whatever_eight_processes_do(shop: Shop) -> None:
    """Each append makes the next number of its key: a number that comes twice, or is left out, is a writer that lost."""
    processes = [shop.start("-c", SET_UP + RACE, str(seed)) for seed in range(8)]
    lost = [process.communicate(timeout=4 * DEADLINE_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    with connection.cursor() as cursor:
        cursor.execute("SELECT account, array_agg(number ORDER BY stream_id) FROM keys.shop_entry GROUP BY 1")
        found = dict(cursor.fetchall())
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in found.values())
    assert sum(map(len, found.values())) == 8 * 30
    assert len(found) > 36
    assert sum(map(int, lost)) > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('text COLLATE "keys".loose', "shop_entry.account, which has its keys, is of collation loose"),
        ("char(9)", "shop_entry.account, which has its keys, is of type bpchar"),
        ("keys.code", "shop_entry.account, which has its keys, is of type bpchar"),
    ],
)
def test_a_key_in_whose_column_other_values_are_equal_is_found(shop: Shop, change: str, words: str) -> None:
    """Locks go by bytes: two writers could append after the same fact of the key that 'A' and 'a' are here."""
    check = ["-m", "django", "check", "--database", "default"]
    assert "streams.W023" not in shop.run(*check)
    with connection.cursor() as cursor:
        cursor.execute("CREATE COLLATION keys.loose (locale = 'C')")
        cursor.execute("CREATE DOMAIN keys.short AS char(9); CREATE DOMAIN keys.code AS keys.short")
        cursor.execute(f"ALTER TABLE keys.shop_entry ALTER account TYPE {change}")
        # PostgreSQL may be built without ICU here, the only provider that has them.
        cursor.execute("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'")
    found = shop.run(*check)
    assert "streams.W023" in found and words in found
    found = shop.run("-m", "django", "check_streams")
    assert words in found and "deterministic collation: ALTER TABLE" in found
