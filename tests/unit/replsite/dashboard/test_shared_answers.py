"""Answers of the live page: made once for all viewers with the same rights, with a tag that changes only if the page does."""

from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from django.db import OperationalError

from replsite.dashboard import shared_answers
from replsite.dashboard.fragments import _RIGHTS
from replsite.dashboard.shared_answers import SharedAnswers
from replsite.live_rows.shared import SharedSnapshot
from tests.support.snapshots import a_reader, a_snapshot, a_stream, a_writer, ago, some_storage
from tests.support.waiting import DEADLINE_SECONDS

EVERYTHING, NOTHING = frozenset(_RIGHTS), frozenset()


class Site:
    """Its snapshots are taken anew when somebody says so."""

    def __init__(self, *parts) -> None:
        self.looks, self.error, self.snapshot = 0, None, a_snapshot(*(parts or [a_stream(a_writer())]))
        self.shared = SharedSnapshot(self._take)

    def _take(self, _):
        self.looks += 1
        if self.error:
            raise self.error
        return replace(self.snapshot, as_of=ago(-self.looks))

    def move(self, *parts) -> None:
        if parts:
            self.snapshot = a_snapshot(*parts)
        self.shared.__init__(self._take)


def content(answer):
    return json.loads(gzip.decompress(answer.packed))


def test_many_viewers_share_one_look_and_one_rendering(monkeypatch):
    site, rendered = Site(), []
    # Twenty threads may take longer to begin than a snapshot stays fresh.
    monkeypatch.setattr(site.shared, "get", partial(site.shared.get, DEADLINE_SECONDS))
    render = shared_answers.render
    monkeypatch.setattr(shared_answers, "render", lambda *of, **more: rendered.append(of) or render(*of, **more))
    answers, begin = SharedAnswers(site.shared), threading.Barrier(20)

    def ask(number):
        begin.wait()
        return answers.of(EVERYTHING if number % 2 else NOTHING)

    with ThreadPoolExecutor(20) as viewers:
        found = set(map(id, viewers.map(ask, range(20))))
    assert (len(found), len(rendered), site.looks) == (2, 2, 1)


def test_while_nothing_changes_the_tag_stays_and_nothing_is_packed_again():
    site = Site(a_stream(a_writer()), a_reader())
    answers = SharedAnswers(site.shared)
    first = answers.of(EVERYTHING)
    site.move()
    second = answers.of(EVERYTHING)
    assert site.looks == 2
    assert second.as_of > first.as_of
    assert second.etag == first.etag
    assert second.packed is first.packed


def test_a_change_has_another_tag_and_what_was_before_has_its_own_again():
    site = Site(a_stream(a_writer("web-1")))
    answers = SharedAnswers(site.shared)
    first = answers.of(EVERYTHING)
    site.move(a_stream(a_writer("web-1", position=11)))
    second = answers.of(EVERYTHING)
    site.move(a_stream(a_writer("web-1")))
    assert second.etag != first.etag == answers.of(EVERYTHING).etag
    ((group, rows),) = content(second)["streams"]
    assert (group, [key for key, _ in rows]) == ("events", ["", "web-1"])
    assert ">11<" in rows[1][1]


def test_two_processes_give_a_page_the_same_tag():
    """Behind a proxy the next question may go to the other."""
    one, other = (SharedAnswers(Site(a_stream(a_writer())).shared).of(EVERYTHING) for _ in range(2))
    assert one.etag == other.etag


def test_each_right_has_its_own_answer():
    site = Site(a_stream(a_writer()))
    site.snapshot = replace(site.snapshot, storage=some_storage())
    answers = SharedAnswers(site.shared)
    assert content(answers.of(EVERYTHING))["rooms"] != [] == content(answers.of(NOTHING))["rooms"]
    assert answers.of(EVERYTHING).etag != answers.of(NOTHING).etag


def test_while_the_database_is_away_no_old_page_is_shown_and_then_it_goes_on():
    site = Site()
    answers = SharedAnswers(site.shared)
    tag = answers.of(EVERYTHING).etag
    site.error = OperationalError("gone")
    site.move()
    with pytest.raises(OperationalError):
        answers.of(EVERYTHING)
    site.error = None
    assert answers.of(EVERYTHING).etag == tag
