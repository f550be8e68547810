"""What is said about the progress of a job."""

from __future__ import annotations

import io

from pipeline.progress import Progress, describe


def test_a_running_stage_tells_rate_and_time_left():
    assert describe("read", 500, 2_000, "lines", 2.0) == "read: 500 of 2,000 lines, 250/s, 2.0 s, 6 s left"


def test_a_finished_stage_tells_no_time_left():
    assert describe("read", 2_000, 2_000, "lines", 4.0) == "read: 2,000 of 2,000 lines, 500/s, 4.0 s"


def test_a_stage_ends_with_its_figures_on_the_stream_and_in_the_store():
    stream, stored = io.StringIO(), []
    with Progress(stream, lambda *values: stored.append(values)).stage("load", 7, "events", lambda: 3):
        pass
    assert stream.getvalue().startswith("load: 7 of 7 events")
    assert stored[-1][:3] == ("load", 7, 7)


def test_a_report_that_fails_does_not_end_the_work(monkeypatch):
    monkeypatch.setattr("pipeline.progress._PLAIN_SECONDS", 0.001)
    asked = []

    def fails():
        asked.append(1)
        raise RuntimeError("no database")

    with Progress(io.StringIO(), lambda *_: None).stage("read", 1, "lines", fails):
        while not asked:
            pass
