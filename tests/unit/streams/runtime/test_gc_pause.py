"""The garbage collector rests while rows are made, and no longer."""

from __future__ import annotations

import gc
import threading

import pytest

from streams.runtime.gc_pause import collector_paused, freeze_objects
from tests.support.waiting import DEADLINE_SECONDS


def test_it_rests_inside_and_works_afterwards():
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_pauses_nest():
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_ends_the_pause():
    with pytest.raises(ZeroDivisionError), collector_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pauses_of_threads_overlap():
    inside, go = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            inside.set()
            go.wait(DEADLINE_SECONDS)

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        inside.wait(DEADLINE_SECONDS)
    assert not gc.isenabled()
    go.set()
    thread.join()
    assert gc.isenabled()


def test_what_is_kept_for_good_is_looked_at_no_more():
    freeze_objects.cache_clear()  # a test before may have called it in this process
    before = gc.get_freeze_count()  # all that the session imported
    new = [[number] for number in range(100)]
    try:
        freeze_objects()
        assert gc.get_freeze_count() >= before + len(new)
    finally:
        freeze_objects.cache_clear()
