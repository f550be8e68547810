"""Fragments: names stay text; rights decide what is shown; time alone changes nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from replsite.dashboard.fragments import _RIGHTS, _picture, render
from replsite.dashboard.page import live_page_data
from replsite.live_rows.jobs import JobsView
from replsite.status.words import Severity, Verdict
from tests.support.snapshots import NOW, a_holder, a_job, a_reader, a_snapshot, a_stream, a_writer, ago, some_storage

EVERYTHING = frozenset(_RIGHTS)
TAGS = {"a", "button", "code", "dd", "div", "dl", "dt", "li", "p", "span", "strong", "td", "th", "tr", "ul"}
TAGS |= {"path", "rect", "svg"}
HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def shown(*parts, rights=EVERYTHING, now=None, **more):
    return render(live_page_data(a_snapshot(*parts, **more)), rights, now)


def test_time_alone_changes_nothing():
    page = live_page_data(a_snapshot(a_stream(a_writer(), holders=(a_holder(90),)), a_reader()))
    assert render(page, EVERYTHING).tables == render({**page, "as_of": "later"}, EVERYTHING).tables


def test_every_row_fills_its_table():
    unused = [
        a_stream(name=name, last_fact_at=None, status=Verdict("idle", Severity.FINE, ""))
        for name in ("caches", "typing")
    ]
    found = shown(a_stream(a_writer()), *unused, a_reader(), a_job())
    assert "2 streams were never written" in html_of(found)
    for name, groups in found.tables.items():
        assert len({len(re.findall(r"<t[dh][ >]", row)) for _, group in groups for _, row in group}) <= 1, name


class Markup(HTMLParser):
    """Elements, their attributes and the text of HTML."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.texts = set(), set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.texts.append(data)


def html_of(found):
    rows = [row for table in found.tables.values() for _, group in table for _, row in group]
    return "".join([found.state, found.summary, *rows])


def test_what_others_choose_is_text_everywhere():
    status = Verdict("blocked", Severity.WRONG, f"{HOSTILE} Run: manage.py x '{HOSTILE}'.", f"manage.py x '{HOSTILE}'")
    writer = a_writer(HOSTILE, status=status, row_id=7)
    holder = a_holder(9, prepared=HOSTILE, role=HOSTILE, application=HOSTILE, status=status)
    reader = a_reader(HOSTILE, key=HOSTILE, kind="connection", address=HOSTILE)
    jobs = JobsView((a_job(kind=HOSTILE, asked_by=HOSTILE, unit=HOSTILE, stage=HOSTILE),))
    found = Markup(
        html_of(
            shown(a_stream(writer, name=HOSTILE, holders=(holder,)), reader, jobs=jobs, now=NOW, storage=some_storage())
        )
    )
    assert found.tags <= TAGS
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "style")}
    assert found.texts.count(HOSTILE) >= 4


def test_ages_are_written_where_no_script_counts_them():
    parts = a_stream(a_writer(held_by="x", held_since=ago(12)), holders=(a_holder(90),)), a_reader()
    assert not re.search(r" ago<|for \d", html_of(shown(*parts)))
    found = html_of(shown(*parts, now=NOW))
    for age in (">5.0 s ago<", ">for 1 min 30 s<", ">for 12 s<"):
        assert age in found


@pytest.mark.parametrize("right", _RIGHTS)
def test_each_right_shows_what_it_is_for_and_nothing_more(right):
    parts = a_stream(a_writer(row_id=77)), a_reader()
    more = {"jobs": JobsView((a_job(3),)), "storage": some_storage()}
    found = shown(*parts, rights=frozenset([right]), **more)
    assert bool(found.tables["rooms"]) == (right == "events.view_room")
    room, _, view = right.partition(".view_")
    led = set(re.findall(r'href="/admin/(\w+/\w+)/', html_of(found)))
    assert led == ({f"{room}/{view}"} if view in ("streamposition", "reader", "job", "room") else set())


def test_a_picture_breaks_where_nothing_is_known():
    assert _picture([None, 2.0, 4.0, None, 0.0]) == (
        '<svg class="live-series" viewBox="0 0 10 32" preserveAspectRatio="none" aria-hidden="true">'
        '<path d="M3 32L3 16L5 3V32ZM9 32L9 29V32Z"/><path d="M3 16L5 3M9 29h.1"/></svg>'
    )


def test_words_that_say_all_stand_alone_and_others_have_their_sentence():
    assert "Keeps up." not in html_of(shown(a_reader()))
    assert "Restart it." in html_of(shown(a_reader(status=Verdict("stuck", Severity.WRONG, "Restart it."))))


def test_a_trouble_has_the_button_that_mends_it_for_those_who_may():
    site = (a_stream(a_writer(), name="web <1>", holders=(a_holder(40),)),)
    address = '/admin/actions/end/?name=web%20%3C1%3E"'
    assert address in html_of(shown(*site))
    assert "/admin/actions/" not in html_of(shown(*site, rights=EVERYTHING - {"streams.end_holder"}))


def test_a_status_word_leads_to_its_explanation():
    html = html_of(shown(a_stream(a_writer()), a_reader()))
    assert '<a class="live-text" href="/admin/words/#writer-writing">writing</a>' in html
    assert '<a class="live-text" href="/admin/words/#reader-current">current</a>' in html
    assert '<a href="/admin/words/#site-well">well</a>' in html


@pytest.mark.parametrize("rights", [EVERYTHING, frozenset()])
def test_what_is_taken_from_the_last_page_is_what_would_be_rendered(rights):
    def page(**changes):
        streams = [a_stream(a_writer("master", name), name=name) for name in ("events", "caches", "typing")]
        streams[1] = replace(streams[1], **changes)
        readers = [a_reader("sender"), a_reader("pusher")]
        return live_page_data(a_snapshot(*streams, *readers, storage=some_storage()))

    first, second = page(), page(linear_position=11)
    shown = render(first, rights)
    again = render(second, rights, last=(first, shown))
    assert again == render(second, rights)
    kept = dict(shown.tables["streams"])
    assert [key for key, rows in again.tables["streams"] if kept[key] is not rows] == ["caches"]


def test_nothing_turns_the_text_beside_it_round():
    turning = "a\u202e\x1bb"
    named = replace(a_reader(turning), status=Verdict("failed", Severity.WRONG, f"Run {turning}: {turning}.", turning))
    found = html_of(shown(a_stream(a_writer(writer=turning), name=turning), named))
    seen = re.sub(r'(data-(key|id)|href)="[^"]*"', "", found)
    assert r"a\u202e\x1bb" in seen and not {"\u202e", "\x1b"} & set(seen)
