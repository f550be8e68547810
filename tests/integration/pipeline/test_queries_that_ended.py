"""A Spark query with a ``readerName`` that nobody runs any more is told while it holds trimming, until it is forgotten."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from pipeline.source.reader_row import ReaderRow, store_reader
from replsite.live_rows.reading import read_snapshot
from replsite.status.words import HealthWord, Severity
from streams.models import Reader
from streams.reading.reader_table import forget_readers
from tests.support.silent_queries import assert_told_everywhere
from tests.support.writing import append, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "my notebook"


def run() -> None:
    """What the query stores of itself after it has handled all facts so far."""
    (token,) = append()
    wait_for_linear(token)
    with connection.cursor() as cursor:
        store_reader(cursor, ReaderRow(NAME, 7, {"caches": {"master": token}}))


def be_silent_for(**age: int) -> None:
    """It was killed then, and facts came since."""
    wait_for_linear(append(5)[-1])
    at = timezone.now() - timedelta(**age)
    Reader.objects.update(heartbeat_at=at, connected_at=at)
    with connection.cursor() as cursor:
        forget_readers(cursor)


def told() -> tuple[HealthWord, list[str]]:
    health = read_snapshot().health
    return health.word, [f"{one.subject}: {one.verdict.sentence}" for one in health.problems]


def forget() -> str:
    out = io.StringIO()
    call_command("streams", "forget", NAME, "--yes", stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("age", [{"minutes": 1}, {"hours": 30}, {"days": 6}])
def test_a_silent_query_is_told_everywhere_for_as_long_as_it_holds_trimming(age: dict[str, int], admin_client: Client):
    """A query that was killed on a Friday was nowhere on Monday, and held trimming back for the week."""
    run()
    assert told() == (HealthWord.WELL, [])
    be_silent_for(**age)
    word, (sentence,) = told()
    assert word is HealthWord.LOOK
    assert (
        sentence.startswith(f"Spark {NAME} on caches: No sign of life for") and f"streams forget '{NAME}'" in sentence
    )
    assert_told_everywhere(NAME, admin_client)


def test_one_that_was_renamed_or_is_not_wanted_is_forgotten_in_the_shell_and_on_the_page(admin_client: Client):
    run()
    be_silent_for(hours=2)
    (problem,) = read_snapshot().health.problems
    assert (problem.verdict.actions, problem.verdict.severity) == (("forget",), Severity.WARNING)
    assert NAME in forget()
    assert told() == (HealthWord.WELL, [])
    run()
    be_silent_for(hours=2)
    assert admin_client.post(f"/admin/actions/forget/?name={NAME}").status_code == 302
    assert (told(), Reader.objects.count()) == ((HealthWord.WELL, []), 0)


def test_one_that_runs_is_not_forgotten():
    run()
    with pytest.raises(CommandError, match=r"runs: it was heard of"):
        forget()
    assert Reader.objects.count() == 1


def test_one_without_its_checkpoint_is_told_as_gone_back():
    """It begins anew; what it wrote before comes again."""
    run()
    with connection.cursor() as cursor:
        store_reader(cursor, ReaderRow(NAME, 8, {"caches": {"master": 1}}))
    assert [one.lag_facts for reader in read_snapshot().readers for one in reader.streams] == [1]
