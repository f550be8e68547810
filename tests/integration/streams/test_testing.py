"""``streams.testing`` and what a ``TestCase`` sees: the test's own transaction counts as committed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.core.management.color import no_style
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext

from streams import registry, testing
from streams.catalog.models import CacheInvalidation
from streams.errors import InTransaction, UnknownReader, WaitTimedOut
from streams.follow import Reader, handles
from streams.follow import handlers as declared
from streams.reading import watcher
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.writing import append, fact, stream

SEEN: list[object] = []


@pytest.fixture(autouse=True)
def mailer():
    """Two readers: one gets facts one by one, the other in chunks."""
    SEEN.clear()

    @handles(CacheInvalidation, reader="mailer", each=True)
    def mail(one):
        if one.cache_name == "bad":
            raise ValueError("no such address")
        if one.cache_name == "passed over":
            with suppress(DatabaseError), connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")
        if one.cache_name == "deleted":
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            del connections["default"]
        if one.cache_name == "again":
            append()
        SEEN.append(one.stream_id)

    @handles("caches", reader="ledger")
    def book(chunk):
        SEEN.append(len(chunk))

    yield
    del declared._handlers["mailer"], declared._handlers["ledger"]


@pytest.mark.django_db
class TestOpen:
    """Nothing here is ever committed. (``tests/docs/test_test_your_streams.py`` runs Django's own classes.)"""

    @pytest.fixture(autouse=True)
    def _first(self, db):
        self.first = append()[0]

    def test_facts_are_read_at_once_and_in_order(self):
        numbers = append(3)
        assert [one.stream_id for one in stream().read().facts] == [self.first, *numbers]
        page = stream().read(newest=True, limit=2)
        assert [one.stream_id for one in page.facts] == numbers[:0:-1]
        assert stream().read(after=numbers[-1]).at_end

    def test_one_test_does_not_see_the_facts_of_another(self):
        append()
        assert len(stream().read().facts) == 2

    def test_fact_of_an_open_block_of_the_code_is_left_out_as_in_production(self):
        for _ in range(2):
            page = stream().read(newest=True, limit=1)
            with transaction.atomic():
                with transaction.atomic():
                    number = append()[0]
                assert stream().read(after=page.facts[0].token).facts == []
            assert [one.stream_id for one in stream().read(after=page.facts[0].token).facts] == [number]

    def test_fact_of_a_block_that_was_rolled_back_is_gone(self):
        with pytest.raises(IntegrityError), transaction.atomic():
            append()
            raise IntegrityError
        assert len(stream().read().facts) == 1

    def test_listen_gives_what_is_there_and_then_beats_without_waiting(self):
        listener = stream().listen(after=self.first, beat=60)
        assert next(listener) is None
        number = append()[0]
        assert next(listener).stream_id == number
        assert next(listener) is None

    def test_listen_without_a_beat_would_wait_for_ever(self):
        listener = stream().listen(after=1)
        assert next(listener).stream_id == self.first
        with pytest.raises(InTransaction, match="TransactionTestCase"):
            next(listener)

    def test_listen_inside_of_a_block_of_the_code_is_refused(self):
        with transaction.atomic(), pytest.raises(InTransaction):
            next(stream().listen(after=1, beat=1))

    def test_wait_for_returns_at_once(self):
        assert stream().wait_for(append(2), 0.1).base >= 2
        with transaction.atomic(), pytest.raises(WaitTimedOut):
            stream().wait_for(append(), 0.1)

    def test_handlers_get_what_the_block_appended(self):
        append()
        with testing.handled("mailer") as run:
            numbers = append(2)
            assert SEEN == []
        assert numbers == SEEN == [one.stream_id for one in run.facts]
        assert run.count == 2

    def test_chunk_handlers_and_several_readers(self):
        with testing.handled("mailer", "ledger") as run:
            numbers = append(2)
        assert [*numbers, 2] == SEEN
        assert run.count == 4

    def test_what_handlers_append_is_handled_too(self):
        with testing.handled("mailer") as run:
            stream().append(cache_name="again", keys=[])
        assert [one.cache_name for one in run.facts] == ["again", "test"]

    def test_error_of_a_handler_is_raised_as_it_is(self):
        with pytest.raises(ValueError, match="no such address"), testing.handled("mailer"):
            append()
            stream().append(cache_name="bad", keys=[])
        assert len(SEEN) == 1

    def test_error_of_the_database_that_a_handler_passes_over_is_raised(self):
        with pytest.raises(transaction.TransactionManagementError, match="passed over"), testing.handled("mailer"):
            stream().append(fact("passed over"))
        assert stream().read().facts

    def test_after_an_error_in_the_block_nothing_is_handled(self):
        with pytest.raises(KeyError), testing.handled("mailer"):
            append()
            raise KeyError
        assert SEEN == []

    def test_inside_of_an_atomic_block_it_is_refused(self):
        with transaction.atomic(), pytest.raises(InTransaction, match="inside of the with block"):
            testing.handled("mailer").__enter__()

    def test_atomic_block_inside_is_handled(self):
        with testing.handled("mailer"), transaction.atomic():
            number = append()[0]
        assert [number] == SEEN

    def test_a_reader_would_see_nothing_and_says_so(self):
        with pytest.raises(InTransaction, match=r'testing\.handled\("mailer"\)'):
            Reader("mailer").catch_up()
        with pytest.raises(CommandError, match=r'testing\.handled\("mailer"\)'):
            call_command("runhandlers", "mailer", "--once")

    def test_unknown_reader(self):
        with pytest.raises(UnknownReader, match="nobody"):
            testing.handled("nobody").__enter__()
        with pytest.raises(TypeError, match="reader"):
            testing.handled()

    def test_commit_callbacks_are_those_of_the_code(self):
        called = []
        transaction.on_commit(lambda: called.append("before"))
        with TestCase.captureOnCommitCallbacks(execute=True) as callbacks:
            append()
            transaction.on_commit(lambda: called.append("inside"))
        assert (called, len(callbacks)) == (["inside"], 1)

    def test_async_code(self):
        """As in an ``async def`` of Django's test classes: asgiref's thread is the test's."""
        async_to_sync(self.use_async_code)()

    async def use_async_code(self):
        (number,) = await stream().aappend(cache_name="a", keys=[])
        page = await stream().aread(after=self.first)
        assert [one.stream_id for one in page.facts] == [number]
        found = []

        async def consume():
            async for one in stream().listen(after=self.first, beat=10):
                found.append(one.stream_id)
                if len(found) == 2:
                    return

        task = asyncio.create_task(consume())
        async with testing.handled("mailer"):
            (other,) = await stream().aappend(cache_name="b", keys=[])
        await asyncio.wait_for(task, DEADLINE_SECONDS)
        assert found == [number, other]
        assert [other] == SEEN
        await stream().await_for(other, 1)


@pytest.mark.django_db(transaction=True)
class TestCommitting:
    """These commit, and the tables are emptied after each."""

    def check(self):
        page = stream().read()
        assert page.facts == []
        with testing.handled("mailer", "ledger") as run:
            numbers = append(2)
        assert [*numbers, 2] == SEEN
        assert run.count == 4
        assert [one.stream_id for one in stream().read().facts] == numbers
        assert next(stream().listen(after=1, beat=10)).stream_id == numbers[0]
        stream().wait_for(numbers)

    def test_one(self):
        self.check()

    def test_two(self):
        self.check()

    test_error_of_the_database_that_a_handler_passes_over_is_raised = (
        TestOpen.test_error_of_the_database_that_a_handler_passes_over_is_raised
    )

    def test_a_handler_that_deletes_its_connection_leaves_no_transaction_open(self):
        """It would keep Django from emptying the tables."""
        with pytest.raises(TransactionManagementError, match="closing its connection"), testing.handled("mailer"):
            stream().append(fact("deleted"))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
            )
            assert cursor.fetchone() == (0,)

    def test_handled_inside_of_a_transaction_is_refused(self):
        with transaction.atomic(), pytest.raises(InTransaction):
            testing.handled("mailer").__enter__()


@pytest.mark.django_db
def test_fixture_db_is_a_test_case_too():
    number = append()[0]
    assert [one.stream_id for one in stream().read().facts] == [number]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("time", [1, 2])
def test_fixture_transactional_db_commits(time):
    number = append()[0]
    assert [one.stream_id for one in stream().read().facts] == [number]


@pytest.mark.django_db(transaction=True)
def test_listeners_end_before_tables_are_emptied(monkeypatch):
    monkeypatch.delattr(TransactionTestCase, "_streams_prepared")
    monkeypatch.setattr(TransactionTestCase, "_fixture_teardown", lambda test: SEEN.append(watcher.watcher_of()))
    testing.prepare(connection)
    stream().wait_for(append()[0])
    assert watcher.watcher_of()
    TransactionTestCase("run")._fixture_teardown()
    assert SEEN == [None]
    assert append()


@pytest.mark.django_db(transaction=True)
def test_django_may_empty_the_tables_after_a_test_and_nobody_else(monkeypatch):
    def empty(_test: object = None) -> None:
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), ["streams_cacheinvalidation"]))

    monkeypatch.delattr(TransactionTestCase, "_streams_prepared")
    monkeypatch.setattr(TransactionTestCase, "_fixture_teardown", empty)
    testing.prepare(connection)
    append()
    with pytest.raises(IntegrityError, match="TRUNCATE is refused"):
        empty()
    TransactionTestCase("run")._fixture_teardown()
    assert not CacheInvalidation.objects.exists()
    with pytest.raises(IntegrityError, match="TRUNCATE is refused"):
        empty()


@pytest.mark.django_db(transaction=True)
def test_a_database_that_the_test_may_not_use_is_left_alone(monkeypatch):
    class Elsewhere(TransactionTestCase):
        databases = frozenset()  # Django refuses each query to any other

    monkeypatch.delattr(TransactionTestCase, "_streams_prepared")
    monkeypatch.setattr(TransactionTestCase, "_fixture_teardown", lambda test: SEEN.append("emptied"))
    testing.prepare(connection)
    Elsewhere._add_databases_failures()
    try:
        Elsewhere("run")._fixture_teardown()
    finally:
        Elsewhere._remove_databases_failures()
        Elsewhere.doClassCleanups()
    assert SEEN == ["emptied"]


@pytest.mark.django_db(transaction=True)
def test_listeners_end_before_the_database_is_dropped(monkeypatch):
    stream().wait_for(append()[0])
    monkeypatch.setattr(type(connection.creation), "_destroy_test_db", lambda *given: SEEN.append(given[1:]))
    name = connection.settings_dict["NAME"]
    connection.creation.destroy_test_db(verbosity=0)
    assert [(name, 0)] == SEEN
    assert watcher.watcher_of() is None


@pytest.mark.django_db
def test_appends_in_a_test_cost_no_further_statement():
    rules = registry.get("push_rules")  # whose facts drop no cached value, whatever other tests have cached
    rules.append(user_id="@a:x")
    with CaptureQueriesContext(connection) as queries:
        rules.append(user_id="@a:x")
    assert len(queries) == 1
    assert registry.get("caches").append(fact())
