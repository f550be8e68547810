"""Whatever is logged becomes one line that a terminal can show, without secrets, in either form."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import math
import sys
import threading

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from streams.runtime import log_format, logs
from streams.runtime.log_format import LONGEST_VALUE, Cleaner, logging_config
from streams.runtime.logs import Condition, get_logger
from streams.runtime.masking import BLOT
from streams.runtime.text import one_line

SECRET = "hunter2hunter2"


@pytest.fixture(params=["json", "key-value"])
def form(request):
    return request.param


@pytest.fixture
def written(form):
    """``written(level, event, **fields)``: the line that is written, by the configuration that a site has."""
    config = structlog.get_config()
    made = logging_config(form, "DEBUG", [SECRET, "x"])
    built = logging.config.DictConfigurator(made)
    formatter = built.configure_formatter(dict(made["formatters"]["structured"]))
    out = io.StringIO()
    handler = log_format._Stderr(out)
    handler.setFormatter(formatter)
    logger = logging.getLogger("tests.log_lines")
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel("DEBUG")

    def write(level, event, *args, foreign=False, **fields):
        out.seek(0)
        out.truncate()
        if foreign:
            getattr(logger, level)(event, *args, **fields)
        else:
            getattr(get_logger("tests.log_lines"), level)(event, **fields)
        return out.getvalue()

    yield write
    logger.removeHandler(handler)
    logger.propagate = True
    structlog.configure(**config)


def one(line, form):
    """The fields of the only line."""
    assert line.count("\n") == 1 and line.endswith("\n")
    assert line[:-1].isprintable()
    return json.loads(line) if form == "json" else line


def test_a_line_has_time_level_logger_event_and_process(written, form):
    found = one(written("info", "a.b", stream="events"), form)
    for word in ("timestamp", "level", "logger", "event", "process", "stream"):
        assert word in found


@pytest.mark.parametrize(
    "said",
    [
        "\x1b[31mred",
        "two\nlines",
        "back\rspace\x08",
        "nul\x00",
        "turned \u202e around",
        "\u2028",
        "lone \ud800",
        "\x9b31m",
    ],
)
def test_what_peers_say_moves_no_cursor(written, form, said):
    one(written("warning", "a.b", client=said), form)
    one(written("warning", f"Not Found: {said}", foreign=True), form)


def test_the_text_of_an_error_stays_readable(written, form):
    found = written("warning", "a.b", error="Zürich: 東京 “so” = 1")
    assert "Zürich: 東京" in (json.loads(found)["error"] if form == "json" else found)


@pytest.mark.parametrize("field", ["error", "event", "exception", "deep"])
def test_secrets_of_the_settings_are_blotted_out(written, form, field):
    fields = {
        "error": {"error": f"no {SECRET} here"},
        "event": {},
        "exception": {"exception": f"trace {SECRET}"},
        "deep": {"deep": {"a": [f"x{SECRET}"]}},
    }[field]
    line = written("error", f"a {SECRET}" if field == "event" else "a.b", **fields)
    assert SECRET not in line
    assert BLOT in line


@pytest.mark.parametrize(
    "url", ["postgres://bob:s3cr3t@db/x", "redis://:s3cr3t@host:1", "see https://a:s3cr3t@b.c/d now"]
)
def test_passwords_in_addresses_are_blotted_out(written, url):
    assert "s3cr3t" not in written("info", "a.b", url=url)


@pytest.mark.parametrize("secret", [SECRET, "postgres://bob:s3cr3t-s3cr3t@db/x"])
def test_a_secret_that_a_long_value_is_cut_in_the_middle_of_is_blotted_out(written, secret):
    cut = secret.find("s3cr3t") + 3 if "@" in secret else 5
    line = written("info", "a.b", error="y" * (LONGEST_VALUE - cut) + secret + "y" * 100)
    assert secret[:cut][-3:] not in line.rpartition("yyy")[2]


def test_words_that_are_short_are_no_secrets(written):
    assert "xylophone" in written("info", "a.b", what="xylophone")


def test_long_values_are_cut_and_say_so(written, form):
    line = written("info", "a.b", text="y" * 100_000)
    assert len(line) < LONGEST_VALUE + 500
    assert "100000 characters" in line


def test_a_trace_is_in_its_line(written, form):
    try:
        raise ValueError("wrong\x1b[0m")
    except ValueError:
        found = one(written("exception", "a.b"), form)
    assert "ValueError" in str(found)
    assert "test_log_format.py" in str(found)


@pytest.mark.parametrize("value", [object(), {1: {2, 3}}, [b"\x00"], (None, True, 1.5), math.inf, math.nan, lambda: 0])
def test_whatever_is_logged_makes_a_line(written, form, value):
    line = written("info", "a.b", value=value)
    one(line, form)
    if form == "json":
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("key", ["a key", "with=sign", "new\nline", "", 'quo"te'])
def test_odd_names_of_fields_make_a_line(written, form, key):
    one(written("info", "a.b", **{key: 1}), form)


def test_lines_of_others_have_the_same_form(written, form):
    found = one(written("warning", "%s of %d", "part", 3, foreign=True), form)
    assert "part of 3" in str(found)


def test_a_line_that_cannot_be_made_is_told_as_one(written, form):
    assert "could not be made" in str(one(written("warning", "%d", "no number", foreign=True), form))


def test_the_connection_at_hand_is_in_every_line(written, form):
    with bound_contextvars(address="127.0.0.1:5", client="worker1"):
        assert "worker1" in written("info", "a.b")
        assert "worker1" in written("info", "of others", foreign=True)
    assert "worker1" not in written("info", "a.b")


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="key-value or json"):
        logging_config("xml", "INFO")


def test_django_has_no_handlers_of_its_own():
    loggers = logging_config("json", "INFO")["loggers"]
    assert loggers["django"]["handlers"] == loggers["django.server"]["handlers"] == []


def test_a_cleaner_bounds_what_lies_deep():
    found = Cleaner("json")(None, "", {"deep": [list(range(1_000))] * 1_000})
    assert len(found["deep"]) == len(found["deep"][0]) == 100


# --- what Python prints by itself -----------------------------------------------------------------------------------------


@pytest.fixture
def caught(monkeypatch):
    """Lines that the hooks write."""
    lines = []
    for name in ("excepthook", "unraisablehook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    logger = logging.getLogger("python")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
    logging.captureWarnings(False)


def test_what_nobody_caught_is_a_line(caught):
    log_format.log_uncaught()

    def fails():
        raise ValueError("in a thread")

    thread = threading.Thread(target=fails, name="worker-7")
    thread.start()
    thread.join()
    sys.excepthook(ValueError, ValueError("in the main thread"), None)
    assert ["thread.crashed" in line or "process.crashed" in line for line in caught] == [True, True]
    assert "worker-7" in caught[0]


# --- conditions -----------------------------------------------------------------------------------------------------------


class Lines:
    def __init__(self):
        self.said = []

    def __getattr__(self, level):
        return lambda event, **fields: self.said.append((level, event, fields))


def test_a_condition_is_told_when_it_begins_and_when_it_is_over():
    log = Lines()
    condition = Condition(log, "a.away", "a.back", who="x")
    condition.ends()
    for _ in range(3):
        condition.begins(ValueError("two\nlines"))
    assert condition.is_on
    condition.ends(rows=5)
    condition.ends()
    (first, last) = log.said
    assert first == ("warning", "a.away", {"who": "x", "error": "two lines"})
    assert last[:2] == ("info", "a.back")
    assert last[2]["rows"] == 5
    assert 0 <= last[2]["seconds"] < 60


def test_an_error_that_says_nothing_is_told_by_its_class():
    assert one_line(TimeoutError()) == "TimeoutError"


def test_a_line_that_nobody_reads_stays_what_it_is_for_other_handlers():
    stream = io.StringIO()
    handler = log_format._Stderr(stream)
    record = logging.LogRecord("a", logging.ERROR, "", 1, "fine: %s", ("yes",), None)
    stream.close()
    handler.handle(record)
    assert record.getMessage() == "fine: yes"


def test_a_failure_that_lasts_is_logged_again_more_and_more_rarely(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    log = Lines()
    condition = Condition(log, "a.away", "a.back", "a.still_away", who="x")
    for second in range(4_000):
        now[0] = float(second)
        condition.begins("gone", next_try_seconds=1.0)
    assert log.said[0] == ("warning", "a.away", {"who": "x", "error": "gone", "next_try_seconds": 1.0})
    assert {event for _, event, _ in log.said[1:]} == {"a.still_away"}
    times = [fields["seconds"] for _, _, fields in log.said[1:]]
    assert times == [10, 20, 40, 80, 160, 320, 640, 1_240, 1_840, 2_440, 3_040, 3_640]
    condition.ends()
    condition.begins("gone")
    assert log.said[-1][1] == "a.away"
