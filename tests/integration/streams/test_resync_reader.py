"""``resync reader``: a reader that lost facts is set anew, knowingly and with a trace."""

from __future__ import annotations

import pytest

from streams.core.tokens import VectorToken
from streams.errors import ReaderNameTaken, ResyncNeeded, TokenError, UnknownReader
from streams.follow import Handler, Reader, resync_reader
from streams.maintenance.trim import Keep, TrimRequest, trim
from streams.models import ReaderResync, StoredCursor
from tests.support.effects import running
from tests.support.writing import append, session, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lost() -> list[int]:
    """Facts of which the first three were trimmed before the reader, which has the first, could read them."""
    wanted = append(6)
    wait_for_linear(wanted[-1])
    StoredCursor.objects.create(reader="billing", stream="caches", base=wanted[0])
    with session() as cursor:
        list(trim(cursor, TrimRequest(stream(), Keep(facts=3), ignored=("billing",), settle_seconds=0)))
    return wanted


def handled() -> list[int]:
    seen: list[int] = []
    Reader("billing", [Handler("caches", "billing", lambda chunk: seen.extend(one.token for one in chunk))]).catch_up()
    return seen


def test_a_reader_goes_on_at_the_present_positions(lost):
    with pytest.raises(ResyncNeeded):
        handled()
    resync_reader("billing", by="me")
    assert handled() == []
    later = append(2)
    wait_for_linear(later[-1])
    assert handled() == later


def test_or_after_a_token_of_the_operators_choice(lost):
    resync_reader("billing", {"caches": VectorToken(lost[2])}, by="me")
    assert handled() == lost[3:]


def test_a_trace_stays(lost):
    resync_reader("billing", {"caches": VectorToken(lost[4])}, by="me")
    trace = ReaderResync.objects.get()
    assert (trace.reader, trace.stream, trace.from_base, trace.to_base) == ("billing", "caches", lost[0], lost[4])
    assert trace.resynced_by == "me"


def test_a_token_below_the_mark_is_refused(lost):
    with pytest.raises(TokenError, match=f"Give a token of at least {lost[2]}"):
        resync_reader("billing", {"caches": VectorToken(lost[1])})
    assert not ReaderResync.objects.exists()


def test_a_token_beyond_the_present_is_refused(lost):
    with pytest.raises(TokenError, match="lies beyond the present position"):
        resync_reader("billing", {"caches": VectorToken(lost[-1] + 1)})


def test_a_running_reader_is_left_alone(lost):
    resync_reader("billing")
    with (
        running(Handler("caches", "billing", lambda chunk: None), name="billing"),
        pytest.raises(ReaderNameTaken, match="Stop that process"),
    ):
        resync_reader("billing")


def test_an_unknown_reader_is_named():
    with pytest.raises(UnknownReader, match="There is no reader 'nobody'"):
        resync_reader("nobody")


def test_a_stream_that_the_reader_does_not_follow_is_named(lost):
    with pytest.raises(UnknownReader, match="does not follow 'events', but caches"):
        resync_reader("billing", {"events": VectorToken(1)})


def test_the_command_sets_it_and_says_from_where_to_where(lost, run_manage):
    done = run_manage("resync", "reader", "billing", "--from", str(lost[3]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"billing on caches: {lost[0]} -> {lost[3]}"
    assert ReaderResync.objects.get().resynced_by


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("reader", "billing", "--from", "caches=later"), 2, "is not a number"),
        (("reader", "billing", "--from", "clouds=1"), 2, "There is no stream 'clouds'"),
        (("reader", "nobody"), 1, "There is no reader 'nobody'"),
        (("reader",), 2, "NAME"),
    ],
)
def test_what_the_command_cannot_do_is_said(lost, run_manage, arguments, status, words):
    done = run_manage("resync", *arguments)
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr
