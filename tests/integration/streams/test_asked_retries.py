"""Retries of dead letters that an operator asks for, by the process that runs the reader."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models.functions import Now

from streams.errors import UnknownReader
from streams.follow import Begin, Chunk, Handler, OnFailure, Reader, ask_retry, parked_facts
from streams.models import StoredCursor
from tests.support.effects import effects, effects_table, running, take
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, terminate, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with effects_table():
        yield


def handler(function=take) -> Handler:
    return Handler(
        "caches", "r", function, begin=Begin.OLDEST, on_failure=OnFailure.PARK, attempts=1, retry_seconds=0.01
    )


@pytest.fixture
def parked() -> list[int]:
    """Tokens of three dead letters of a reader that does not run."""

    def refuse(chunk: Chunk) -> None:
        raise ValueError("cannot take")

    tokens = append(3)
    wait_for_linear(tokens[-1])
    Reader("r", [handler(refuse)]).catch_up()
    assert [one.token for one in parked_facts("r")] == tokens
    return tokens


def result() -> str:
    return StoredCursor.objects.get(reader="r", stream="caches").retry_result


def test_the_running_process_retries_them_and_says_what_came_of_it(parked):
    def take_but_one(chunk: Chunk) -> None:
        take(chunk)
        if parked[1] in [fact.token for fact in chunk]:
            raise KeyError("still not")

    with running(handler(take_but_one)) as runs:
        assert effects() == []
        assert ask_retry("r", by="ann") == ["caches"]
        wait_until(lambda: result() or runs.error)
        assert result() == "2 handled, 1 failed again, 1 left"
        assert effects() == [parked[0], parked[2]]
        later = append(2)  # the reader goes on as before
        wait_until(lambda: effects()[2:] == later or runs.error)
        ask_retry("r", "caches", parked[1], by="bob")
        wait_until(lambda: result() == "0 handled, 1 failed again, 1 left" or runs.error)
        assert runs.error is None
    cursor = StoredCursor.objects.get(reader="r")
    assert (cursor.retry_asked_by, cursor.retry_tokens) == ("bob", [parked[1]])


def test_a_process_that_starts_retries_what_was_asked_for_meanwhile(parked):
    ask_retry("r", "caches", parked[2], by="ann")
    ask_retry("r", "caches", parked[0], by="bob")
    with running(handler()) as runs:
        wait_until(lambda: result() or runs.error)
    assert result() == "2 handled, 0 failed again, 1 left"
    assert effects() == [parked[0], parked[2]]


def test_a_process_that_only_catches_up_retries_before_it_ends(parked):
    ask_retry("r", by="ann")
    Reader("r", [handler()]).catch_up()
    assert effects() == parked
    assert result() == "3 handled, 0 failed again, 0 left"


def test_a_retry_that_was_begun_when_its_process_was_killed_is_not_begun_again(parked):
    ask_retry("r", by="ann")
    StoredCursor.objects.update(retry_began_at=Now())
    Reader("r", [handler()]).catch_up()
    assert effects() == []
    assert result() == "the process ended before it was done"
    ask_retry("r", by="ann")
    Reader("r", [handler()]).catch_up()
    assert effects() == parked


def test_a_process_that_is_stopped_leaves_the_rest_to_the_next_one(parked):
    readers: list[Reader] = []

    def stop_after_one(chunk: Chunk) -> None:
        take(chunk)
        readers[0].stop()

    with running(handler(stop_after_one)) as runs:
        readers.append(runs.reader)
        ask_retry("r", by="ann")
        runs.thread.join(DEADLINE_SECONDS)
    assert effects() == parked[:1]
    cursor = StoredCursor.objects.get(reader="r")
    assert (cursor.retry_asked_by, cursor.retry_began_at, cursor.retry_result) == ("ann", None, "")
    Reader("r", [handler()]).catch_up()
    assert effects() == parked


def test_a_retry_goes_on_after_its_connection_broke(parked):
    cut = []

    def cut_once(chunk: Chunk) -> None:
        take(chunk)
        if not cut:
            cut.append(True)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                terminate(cursor.fetchone()[0])

    with running(handler(cut_once)) as runs:
        ask_retry("r", by="ann")
        wait_until(lambda: result() or runs.error)
    assert effects() == parked[1:], "the first failed with its connection, and stays with its error"
    assert result() == "2 handled, 1 failed again, 1 left"


def test_a_process_without_a_handler_of_the_stream_says_so(parked):
    ask_retry("r", by="ann")
    with running(Handler("events", "r", take)):
        wait_until(result)
    assert result() == "none handled: the reader's process has no handler of this stream"
    assert effects() == []


def test_who_has_no_such_dead_letters_cannot_be_asked(parked):
    for reader, stream in (("nobody", None), ("r", "events")):
        with pytest.raises(UnknownReader):
            ask_retry(reader, stream, by="ann")


def test_what_an_error_says_of_a_fact_does_not_steer_the_terminal():
    def refuse(chunk: Chunk) -> None:
        raise ValueError("\x1b]0;owned\x07\x9b2J\u202e")

    wait_for_linear(append(1)[0])
    Reader("r", [handler(refuse)]).catch_up()
    out = io.StringIO()
    call_command("parked", "list", "r", "--trace", stdout=out)
    assert r"ValueError: \x1b]0;owned\x07\x9b2J\u202e" in out.getvalue(), "as it is stored"
    assert r"ValueError: \u001b]0;owned\u0007\u009b2J\u202e" in out.getvalue(), "the end of the traceback"
    assert out.getvalue().replace("\n", "").isprintable()
