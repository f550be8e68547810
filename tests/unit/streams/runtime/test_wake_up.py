"""A wake-up's descriptors live exactly as long as somebody holds it."""

from __future__ import annotations

import select
import threading

from streams.runtime.wake_up import WakeUp
from tests.support.left_open import OPEN


def descriptors() -> set[str]:
    return {entry.name for entry in OPEN.iterdir()}


def is_readable(wake_up: WakeUp) -> bool:
    return bool(select.select([wake_up], [], [], 0)[0])


def test_what_was_rung_is_read_until_it_is_hushed():
    wake_up = WakeUp()
    assert not is_readable(wake_up)
    wake_up.ring()
    wake_up.ring()
    assert is_readable(wake_up)
    wake_up.hush()
    assert not is_readable(wake_up)
    wake_up.hush()  # nothing there: it does not wait


def test_a_full_pipe_is_no_error():
    wake_up = WakeUp()
    for _ in range(70_000):
        wake_up.ring()
    assert is_readable(wake_up)


def test_it_is_closed_when_nobody_holds_it_any_more():
    before = descriptors()
    wake_up = WakeUp()
    held = wake_up
    assert len(descriptors() - before) == 2
    del wake_up
    held.ring()  # who took hold of it in time writes into its own pipe
    del held
    assert descriptors() == before


def test_another_thread_ends_the_waiting():
    wake_up = WakeUp()
    threading.Timer(0.05, wake_up.ring).start()
    assert select.select([wake_up], [], [], 10)[0] == [wake_up]
