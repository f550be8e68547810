"""What holds a stream back is named and ended by ``manage.py streams abort``."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from django.core.management.base import CommandError

from replsite.operator_actions import Asked
from replsite.terminal.confirm import act
from streams.holds import end
from tests.support.waiting import wait_until
from tests.support.writing import (
    append,
    held_open,
    ids,
    linear,
    other_writer,
    server_process,
    session,
    wait_for_linear,
    writer_waits_for,
)

pytestmark = pytest.mark.django_db(transaction=True)
_INSERT = "INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('x') RETURNING stream_id"


@pytest.fixture(autouse=True)
def _all_are_old(monkeypatch):
    monkeypatch.setattr(end, "YOUNG_SECONDS", 0.0)


def found(stream: str = "caches") -> list[end.Holder]:
    with session() as cursor:
        return end.old_holders(cursor, stream)


def abort(say, ask=None, *, is_confirmed: bool = False) -> None:
    act(say, "end-holder", Asked("caches", "test"), ask=ask, is_confirmed=is_confirmed)


def aborted(answer: str | None = "caches") -> str:
    """What the command says. It is answered so, or not asked."""
    said: list[str] = []
    abort(said.append, lambda _: str(answer), is_confirmed=answer is None)
    return "\n".join(said)


def test_a_transaction_is_named_before_anybody_confirms():
    said: list[str] = []
    with held_open():
        with pytest.raises(CommandError, match="Not confirmed"):
            abort(said.append, lambda _: "no")
        assert found(), "nothing was ended"
    assert re.search(r"database session \d+ .*open since \S+ \S+, holds it back at \d+; its last statement: ", said[0])


@pytest.mark.parametrize("answer", ["caches", None], ids=["confirmed", "--yes"])
def test_it_is_rolled_back_and_the_stream_goes_on(answer):
    before = append()
    with held_open():
        assert linear() == before[0]
        assert "1 transaction ended" in aborted(answer)
    assert ids() == before
    wait_for_linear(append()[0])


def test_without_anybody_to_ask_nothing_happens():
    with held_open() as held, pytest.raises(CommandError, match="--yes") as error:
        abort(str)
    assert error.value.returncode == 2
    assert ids() == held


def test_a_session_of_several_writers_is_one():
    with other_writer("one") as cursor:
        cursor.execute("BEGIN")
        cursor.execute(_INSERT)
        cursor.execute("SET LOCAL streams.writer = 'two'")
        cursor.execute(_INSERT)
        (holder,) = found()
        assert aborted(None).count("ended") == 1
    assert holder.bound < min(append())


def test_what_an_append_waits_for_is_named():
    with writer_waits_for("another program") as written:
        wait_until(lambda: "waits for a lock of database session" in (said := look()) and "another program" in said)
        with session() as cursor:
            end.end_blockers(cursor, end.blockers(cursor, end.old_holders(cursor, "caches")), "test")
    assert ids() == written


def look() -> str:
    said: list[str] = []
    with pytest.raises(CommandError):
        abort(said.append, lambda _: "no")
    return "\n".join(said)


def test_a_session_that_went_on_to_another_transaction_is_left_alone():
    """An operator takes minutes to confirm. Meanwhile the append ended, and another session may have its PID."""
    with held_open() as held:
        (holder,) = found()
    with session() as cursor:
        assert end.end_holders(cursor, [replace(holder, pid=server_process())], "test") == []
        assert end.end_holders(cursor, [holder], "test") == []
    assert ids() == held


@pytest.mark.parametrize(
    "lock",
    [
        "UPDATE streams_streamposition SET updated_at = now() WHERE stream = 'caches'",
        "SELECT FROM streams_streamposition WHERE stream = 'caches' FOR UPDATE",
        "SAVEPOINT a; UPDATE streams_streamposition SET updated_at = now() WHERE stream = 'caches'; RELEASE a",
    ],
    ids=["UPDATE", "FOR UPDATE", "savepoint"],
)
def test_who_keeps_positions_from_being_stored_is_named_and_ended(lock: str):
    """A looker passes such rows over, and no open append is to be seen."""
    before = append()
    wait_for_linear(before[0])
    with session() as cursor:
        cursor.execute(f"BEGIN; {lock}")
        after = append()
        (keeper,) = wait_until(found)
        assert keeper.keeps_rows
        assert linear() == before[0]
        assert found("typing") == []
        assert "1 transaction ended" in aborted(None)
    wait_for_linear(after[0])


def test_a_prepared_transaction_is_named_and_left_to_sql(monkeypatch):
    with held_open():
        (holder,) = found()
    prepared = replace(holder, pid=None, prepared="odd one")
    monkeypatch.setattr("replsite.operator_actions.old_holders", lambda *_: [prepared])
    with pytest.raises(CommandError, match="ROLLBACK PREPARED ends"):
        aborted(None)


def test_nothing_holds_it_back():
    append()
    assert aborted(None) == "Nothing holds caches back: no append to it is open for long."


def test_young_appends_are_not_taken_for_what_blocks(monkeypatch):
    monkeypatch.setattr(end, "YOUNG_SECONDS", 60.0)
    with held_open() as held:
        assert aborted(None).startswith("Nothing holds caches back")
    assert ids() == held


def test_the_command_asks_nobody_in_a_pipe(run_manage, monkeypatch):
    # The command is a process of its own: for it a transaction is young for as long as the code says.
    monkeypatch.setattr(end, "YOUNG_SECONDS", 1.0)
    with held_open():
        wait_until(found)
        done = run_manage("streams", "abort", "caches", input="")
        assert (done.returncode, "--yes" in done.stderr) == (2, True)
        assert run_manage("streams", "abort", "caches", "--yes").returncode == 0
    assert ids() == []
