"""What is said about the progress of a job."""

from __future__ import annotations

import io
import threading

import pytest

from streams.jobs.progress import Progress, describe
from tests.support.waiting import wait_until


def test_a_running_stage_tells_rate_and_time_left():
    assert describe("read", 500, 2_000, "lines", 2.0) == "read: 500 of 2,000 lines, 250/s, 2.0 s, 6.0 s left"


def test_a_finished_stage_tells_no_time_left():
    assert describe("read", 2_000, 2_000, "lines", 4.0) == "read: 2,000 of 2,000 lines, 500/s, 4.0 s"


def test_a_stage_ends_with_its_figures_on_the_stream_and_in_the_store():
    stream, stored = io.StringIO(), []
    with Progress(stream, lambda *values: stored.append(values)).stage("load", 7, "events", lambda: 3):
        pass
    assert stream.getvalue().startswith("load: 7 of 7 events")
    assert stored[-1][:3] == ("load", 7, 7)


def test_a_report_that_fails_does_not_end_the_work(monkeypatch):
    monkeypatch.setattr("streams.jobs.progress._PLAIN_SECONDS", 0.001)
    asked = []

    def fails():
        asked.append(1)
        raise RuntimeError("no database")

    with Progress(io.StringIO(), lambda *_: None).stage("read", 1, "lines", fails):
        while not asked:
            pass


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_terminal_one_line_is_written_over_with_rate_and_time_left(monkeypatch):
    monkeypatch.setattr("streams.jobs.progress._TERMINAL_SECONDS", 0.001)
    terminal, stored = Terminal(), []
    with Progress(terminal, lambda *values: stored.append(values)).stage("read", 100, "lines", lambda: 25):
        wait_until(lambda: len(stored) > 2)
    *running, last = terminal.getvalue().removesuffix("\n").split("\r\x1b[2K")[1:]
    assert len(running) > 1 and "\n" not in "".join(running)
    assert all(text.startswith("read: 25 of 100 lines, ") and text.endswith(" s left") for text in running)
    assert last.startswith("read: 100 of 100 lines, ")
    assert all(rate > 0 for *_, rate in stored) and [done for _, done, *_ in stored[-2:]] == [25, 100]


def test_where_nobody_knows_how_much_there_is_no_time_left_is_told():
    assert describe("check", 512, None, "bytes", 2.0) == "check: 512 bytes, 256/s, 2.0 s"
    assert describe("check", 0, 512, "bytes", 0.0) == "check: 0 of 512 bytes, 0/s, 0 s"


def test_where_there_is_nothing_to_do_no_total_is_told():
    """It said "0 of 0 events, 0/s"."""
    assert describe("load", 0, 0, "events", 0.1) == "load: 0 events, 0.1 s"


def test_a_stage_that_fails_ends_its_report(monkeypatch):
    monkeypatch.setattr("streams.jobs.progress._PLAIN_SECONDS", 0.001)
    stored = []
    progress = Progress(io.StringIO(), lambda *values: stored.append(values))
    with pytest.raises(ValueError, match="the work"), progress.stage("load", 7, "events", lambda: 3):
        wait_until(lambda: stored)
        raise ValueError("the work")
    assert {done for _, done, *_ in stored} == {3}
    assert not [thread for thread in threading.enumerate() if "_report" in thread.name]
