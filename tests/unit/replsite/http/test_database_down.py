"""What is said while the database is away: to people, to programs, and in the log."""

from __future__ import annotations

import json
import logging

import pytest
from django.db import InterfaceError, OperationalError, ProgrammingError
from django.test import RequestFactory

from replsite.http import database_down
from replsite.http.database_down import AWAY, DatabaseDownMiddleware, away_response, handler500

GONE = OperationalError('connection to server at "10.1.2.3", port 5432 failed: secret')


@pytest.fixture(autouse=True)
def _not_said_yet(monkeypatch):
    monkeypatch.setattr(database_down._Logged, "is_away", False)


def request(method="get", accept="text/html,*/*"):
    return getattr(RequestFactory(), method)("/admin/", headers={"accept": accept})


def test_a_page_says_it_and_asks_again():
    answer = away_response(request(), GONE)
    text = answer.content.decode()
    assert (answer.status_code, answer["Retry-After"], answer["Cache-Control"]) == (503, "5", "no-store")
    assert AWAY in text
    assert 'http-equiv="refresh"' in text
    assert "10.1.2.3" not in text


def test_what_was_posted_is_not_sent_again_by_itself():
    text = away_response(request("post"), GONE).content.decode()
    assert 'http-equiv="refresh"' not in text
    assert "was not done" in text


def test_programs_get_json():
    answer = away_response(request(accept="*/*"), GONE)
    assert (answer.status_code, json.loads(answer.content)) == (503, {"error": AWAY})


@pytest.mark.parametrize("error", [GONE, InterfaceError("connection already closed")])
def test_errors_of_views_are_answered(error):
    assert DatabaseDownMiddleware(lambda request: None).process_exception(request(), error).status_code == 503


@pytest.mark.parametrize("error", [ProgrammingError("no such table"), ValueError("x")])
def test_other_errors_are_not_hidden(error):
    assert DatabaseDownMiddleware(lambda request: None).process_exception(request(), error) is None


def test_errors_outside_of_views_are_answered_as_well():
    try:
        raise GONE
    except OperationalError:
        assert handler500(request()).status_code == 503
    try:
        raise ValueError
    except ValueError:
        assert handler500(request()).status_code == 500


def test_the_log_is_told_once(caplog):
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            away_response(request(), GONE)
    assert [
        record.getMessage() for record in caplog.records if "site.database_away" in record.getMessage()
    ].__len__() == 1
