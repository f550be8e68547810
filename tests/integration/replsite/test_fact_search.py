"""The search on the page of facts: by ID, time, key and content, each by an index or over a bounded number of rows."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from replsite.dashboard import fact_search
from streams.catalog.models import CacheInvalidation
from tests.support.writing import as_instance, fact, held_open, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "/admin/facts/"


@pytest.fixture
def facts():
    """Six facts of an hour."""
    names = ["Alpha", "beta", "alphabet", "100%", "a_b", "<b>"]
    numbers = stream().append(*(fact(name) for name in names))
    for number, ago in zip(numbers, (60, 50, 40, 30, 20, 10), strict=True):
        old = CacheInvalidation.objects.filter(stream_id=number).writable()
        old.update(received_at=Now() - timedelta(minutes=ago))
    wait_for_linear(numbers[-1])
    return list(numbers)


@pytest.fixture
def shown(admin_client):
    """``shown(text="…")``: the IDs that the page shows, and the page."""

    def ask(stream="caches", **asked):
        page = admin_client.get(PAGE, {"stream": stream} | asked).content.decode()
        return [int(number) for number in re.findall(r'<tr><th scope="row" class="live-number">(\d+)</th>', page)], page

    return ask


@pytest.mark.parametrize(
    ("asked", "places"),
    [
        ({"text": "ALPHA"}, [2, 0]),
        ({"text": "0%"}, [3]),
        ({"text": "a_b"}, [4]),
        ({"text": "<b>"}, [5]),
        ({"text": "nothing like it"}, []),
        ({"until": "35m"}, [2, 1, 0]),
        ({"until": "35m", "text": "alpha"}, [2, 0]),
        ({"until": "2h"}, []),
    ],
)
def test_facts_are_found(facts, shown, asked, places):
    assert shown(**asked)[0] == [facts[place] for place in places]


@pytest.mark.parametrize("text", ['say "hi"', "a\\b", "two\nlines", "Größe"])
def test_texts_that_json_escapes_are_found(facts, shown, text):
    (number,) = stream().append(fact(f"before {text} behind"))
    wait_for_linear(number)
    assert shown(text=text)[0] == [number]


def test_what_turns_text_round_is_written_as_an_escape(facts, shown):
    with as_instance("wri\u2066ter"):
        wait_for_linear(*stream().append(fact("evil\u202e\x1b" + "x" * 100)))
    for asked in ({}, {"text": "evil"}):
        page = shown(**asked)[1]
        assert r"cache_name evil\u202e\x1bxxx" in page and r"wri\u2066ter" in page
        assert not {"\u202e", "\u2066", "\x1b"} & set(page)


def test_a_column_with_the_name_of_the_table_hides_no_other_column(facts, shown):
    table = "streams_cacheinvalidation"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD {table} text DEFAULT 'x'")
        try:
            assert shown(text="alphabet")[0] == [facts[2]]
        finally:
            cursor.execute(f"ALTER TABLE {table} DROP {table}")


def test_facts_are_found_by_their_id_with_those_below(facts, shown):
    assert shown(id=facts[2])[0] == facts[2::-1]
    assert "follow.js" not in shown(id=facts[2])[1], "a search is not live"


def test_pages_lead_to_the_beginning(facts, shown, monkeypatch):
    monkeypatch.setattr(fact_search, "FACTS_PER_PAGE", 2)
    seen, asked = [], {"text": "a"}
    for _ in range(5):
        numbers, page = shown(**asked)
        seen += numbers
        found = re.search(r'href="\?stream=caches&amp;text=a&amp;id=(\d+)">Older', page)
        if found is None:
            break
        asked = {"text": "a", "id": found[1]}
    assert seen == facts[::-1], "each row has its writer's name, which has an a"


def test_a_search_for_content_reads_some_rows_and_goes_on_below(facts, shown, monkeypatch):
    monkeypatch.setattr(fact_search, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(fact_search, "SEARCH_SECONDS", -1.0)
    numbers, page = shown(text="beta")
    assert numbers == []
    assert f"4 rows were read, from ID {facts[5]} down to {facts[2]}." in page
    assert "Search further back" in page
    below = re.search(r"id=(\d+)", page[page.index('aria-label="Pages"') :])[1]
    numbers, page = shown(text="beta", id=below)
    assert numbers == [facts[1]]
    assert "were read" not in page


def test_a_search_for_content_goes_on_while_there_is_time_and_ends_with_a_page(facts, shown, monkeypatch):
    monkeypatch.setattr(fact_search, "ROWS_AT_ONCE", 1)
    assert shown(text="alpha")[0] == [facts[2], facts[0]]
    monkeypatch.setattr(fact_search, "FACTS_PER_PAGE", 1)
    with CaptureQueriesContext(connection) as queries:
        assert shown(text="alpha")[0] == [facts[2]]
    assert sum("ILIKE" in one["sql"] for one in queries.captured_queries) == 6, (
        "one fact more than is shown, and no further"
    )


def test_what_is_not_complete_is_not_found(facts, shown):
    with held_open():
        (later,) = stream().append(fact("Alpha"))
        assert later not in shown(text="alpha")[0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"id": "x"}, "whole number"),
        ({"id": "9" * 30}, "whole number"),
        ({"until": "yesterday evening"}, "is no time"),
        ({"key": "k"}, "has no key"),
        ({"key": "k", "text": "t"}, "not for both"),
        ({"text": "\x00"}, "no NUL"),
        ({"text": "t" * 301}, "at most 300"),
    ],
)
def test_an_unusable_search_is_refused_in_words(facts, shown, asked, said):
    numbers, page = shown(**asked)
    assert (numbers, said in page) == ([], True)


def test_a_search_needs_the_permission_of_the_table(client, django_user_model, facts):
    client.force_login(django_user_model.objects.create_user("ann", is_staff=True))
    assert client.get(f"{PAGE}?stream=caches&text=a").status_code == 404


@pytest.mark.parametrize("asked", [{"text": "beta"}, {"until": "35m"}, {"id": "7"}])
def test_a_search_reads_by_the_index_on_the_id(new_tables, facts, shown, asked):
    with CaptureQueriesContext(connection) as asked_of_database:
        shown(**asked)
    of_facts = [one["sql"] for one in asked_of_database.captured_queries if '"streams_cacheinvalidation"' in one["sql"]]
    assert of_facts
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")  # as if it were large
        for sql in of_facts:
            cursor.execute(f"EXPLAIN {sql}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan" not in plan, sql
