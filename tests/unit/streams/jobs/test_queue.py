"""A server of jobs that is told to end by a signal, which may come between any two lines of what it does."""

from __future__ import annotations

import io
import sys
import time

import pytest

from streams.jobs.queue import JobServer


@pytest.mark.timeout(60)  # a handler that waits for a lock of the code that it interrupts waits for ever
@pytest.mark.parametrize("line", range(1, 40))
def test_a_signal_at_any_line_of_the_wait_ends_it(line):
    server = JobServer("default", io.StringIO(), print)
    passed = 0

    def trace(frame, event, _argument):
        nonlocal passed
        passed += event == "line"
        if event == "line" and passed == line:
            sys.settrace(None)
            server.stop()
        return trace

    began = time.monotonic()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        server._wait(0.05)
    finally:
        sys.settrace(before)
    assert time.monotonic() - began < 30
    server.stop()
    server._wait(60.0)  # ends at once: a wake-up that came is not lost
    assert time.monotonic() - began < 30
