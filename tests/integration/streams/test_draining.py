"""``active -> draining -> retired``: nothing new is reserved, what is open completes, and then the writer has left."""

from __future__ import annotations

import threading

import pytest
from django.db import transaction

from streams.errors import WriterDraining, WriterRetired
from streams.models import Instance, StreamPosition, WriterResolution
from streams.testing import forget_writers
from streams.writing import lease
from streams.writing.process import current_writer, retire_all
from streams.writing.writer import Condition
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, ids, in_thread, linear, session, stored, terminate, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


def ask(name: str = "master", by: str = "test") -> list[str]:
    with session() as cursor:
        return lease.mark_draining(cursor, name, by)


def retired() -> bool:
    return stored()["master"].state == "retired"


def test_draining_writer_refuses_reservations_and_completes_what_is_open():
    append()
    with transaction.atomic():
        number = append()[0]
        assert ask() == ["caches"]
        wait_until(lambda: current_writer().condition is Condition.DRAINING)
        assert stored()["master"].state == "draining"
        assert linear() < number, "it counts until its fact is complete"
        with pytest.raises(WriterDraining, match="another process"), transaction.atomic():
            append()
    wait_until(retired)
    wait_for_linear(number)
    assert number in ids()


def test_refusal_comes_at_once_although_a_transaction_is_open():
    append()
    release = threading.Event()

    def hold_open() -> None:
        with transaction.atomic():
            append()
            release.wait(DEADLINE_SECONDS)

    thread = in_thread(hold_open)
    try:
        wait_until(lambda: current_writer().trackers["caches"].pending)
        ask()
        wait_until(lambda: current_writer().condition is Condition.DRAINING)
        with pytest.raises(WriterDraining):
            append()
        assert not retired()
    finally:
        release.set()
        thread.join()
    wait_until(retired)
    assert len(ids()) == 2


def test_writer_that_was_asked_to_leave_does_not_come_back_in_its_process():
    append()
    ask(by="streams retire on host")
    wait_until(retired)
    with pytest.raises(WriterRetired, match="streams retire on host asked"):
        append()
    assert Instance.objects.get().state == "retired"


def test_trace_says_who_asked():
    append()
    ask(by="streams retire on host")
    wait_until(WriterResolution.objects.exists)
    row = WriterResolution.objects.get()
    assert (row.action, row.resolved_by, row.instance_name) == ("drained", "streams retire on host", "master")


def test_retired_name_comes_back_as_active_with_a_new_process():
    first = append()[0]
    ask()
    wait_until(retired)
    forget_writers()
    second = append()[0]
    assert stored()["master"].state == "active"
    assert Instance.objects.get().drain_asked_by == ""
    wait_for_linear(second)
    assert second > first


def test_orderly_end_drains_too_and_leaves_no_trace():
    append()
    states: list[str] = []

    def hold_open() -> None:
        with transaction.atomic():
            append()
            ending.start()
            wait_until(lambda: stored()["master"].state == "draining")
            states.append(stored()["master"].state)

    ending = threading.Thread(target=retire_all)
    in_thread(hold_open).join()
    ending.join()
    assert states == ["draining"]
    assert retired()
    assert not WriterResolution.objects.exists()
    assert linear() == ids()[-1]


def test_request_is_not_forgotten_when_the_lock_is_lost():
    append()
    with transaction.atomic():
        number = append()[0]
        ask()
        wait_until(lambda: current_writer().condition is Condition.DRAINING)
        terminate(current_writer().control.info.backend_pid)
        wait_until(lambda: current_writer().condition is Condition.FENCED)
    wait_until(retired)
    wait_for_linear(number)
    with pytest.raises(WriterRetired):
        append()


def test_request_is_seen_without_its_poke():
    append()
    StreamPosition.objects.update(state="draining")
    Instance.objects.update(state="draining", drain_asked_by="somebody")
    wait_until(retired)


def test_writer_that_has_retired_is_not_asked():
    append()
    retire_all()
    assert ask() == []
    assert retired()


def test_everything_rolled_back_retires_too():
    append()
    with pytest.raises(RuntimeError), transaction.atomic():
        append()
        ask()
        wait_until(lambda: current_writer().condition is Condition.DRAINING)
        raise RuntimeError
    wait_until(retired)
    assert len(ids()) == 1
