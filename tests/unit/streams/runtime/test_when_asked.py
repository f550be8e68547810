"""A registry that is filled when it is first read: once, whole, whoever reads it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import ModuleType

import pytest

from streams.runtime.when_asked import WhenAsked
from tests.support.waiting import DEADLINE_SECONDS, wait_until

NAME = "module_of_a_registry"


@pytest.fixture
def module(monkeypatch):
    made = ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, made)
    return made


def test_a_function_is_called_when_the_registry_is_read_and_once(module):
    calls = []
    module.fill = lambda: calls.append(1)
    fill = WhenAsked()
    fill.add(f"{NAME}.fill")
    assert calls == []
    fill.call()
    fill.call()
    assert calls == [1]


def test_a_second_reader_waits_until_the_registry_is_filled(module):
    began, may_end, filled = Event(), Event(), []

    def slowly() -> None:
        began.set()
        assert may_end.wait(DEADLINE_SECONDS)
        filled.append(1)

    module.fill = slowly
    fill = WhenAsked()
    fill.add(f"{NAME}.fill")

    def read() -> list[int]:
        fill.call()
        return list(filled)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read)
        wait_until(began.is_set)
        second = threads.submit(read)
        with pytest.raises(TimeoutError):
            second.result(0.05)
        may_end.set()
        assert (first.result(DEADLINE_SECONDS), second.result(DEADLINE_SECONDS)) == ([1], [1])


def test_what_failed_is_called_again(module):
    answers = iter([ImportError("not installed"), None])

    def fail_once() -> None:
        if error := next(answers):
            raise error

    module.fill = fail_once
    fill = WhenAsked()
    fill.add(f"{NAME}.fill")
    with pytest.raises(ImportError):
        fill.call()
    fill.call()
    assert next(answers, "called twice") == "called twice"
