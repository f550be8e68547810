"""The search on the page of facts: by ID, time, key and content, each by an index or over a bounded number of rows."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from urllib.parse import parse_qsl

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from replsite.dashboard import content_search, fact_search
from streams.catalog.models import CacheInvalidation
from streams.holds.maintenance import changing_facts
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


@pytest.fixture
def searched(shown):
    """``searched(text="…")``: the IDs of all pages from the newest to the end, and the number of pages."""

    def ask(**asked):
        seen, pages = [], 0
        while True:
            numbers, page = shown(**asked)
            seen, pages = seen + numbers, pages + 1
            link = re.search(r'id="facts-older" href="\?([^"]*)"', page)
            if link is None:
                return seen, pages
            asked = dict(parse_qsl(unescape(link[1])))

    return ask


def test_a_search_for_content_reads_some_rows_and_goes_on_below(facts, shown, monkeypatch):
    monkeypatch.setattr(content_search, "FIRST_ROWS", 4)
    monkeypatch.setattr(content_search, "SEARCH_SECONDS", -1.0)
    numbers, page = shown(text="beta")
    assert numbers == []
    at = CacheInvalidation.objects.get(stream_id=facts[2]).received_at
    assert f"Searched down to ID {facts[2]:,} of {at:%Y-%m-%d %H:%M:%S} UTC." in page
    assert f"The stream has the IDs 1 to {facts[5]:,}." in page
    assert "Search further back" in page
    below = re.search(r"id=(\d+)", page[page.index('aria-label="Pages"') :])[1]
    numbers, page = shown(text="beta", id=below)
    assert numbers == [facts[1]]
    assert "Searched down" not in page


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("most", [2, 3, 1_000])
def test_nothing_is_missed_or_shown_twice_where_a_search_goes_on(facts, searched, monkeypatch, rows, most):
    monkeypatch.setattr(content_search, "FIRST_ROWS", rows)
    monkeypatch.setattr(content_search, "SEARCH_SECONDS", -1.0)
    monkeypatch.setattr(content_search, "_MOST_ROWS", most)
    monkeypatch.setattr(fact_search, "FACTS_PER_PAGE", 2)
    known = facts + list(stream().append(*(fact("other" if n % 3 else "Alpha") for n in range(20))))
    wait_for_linear(known[-1])
    fits = CacheInvalidation.objects.filter(cache_name__icontains="alpha").order_by("-stream_id")
    seen, pages = searched(text="alpha")
    assert (seen, pages > 2) == (list(fits.values_list("stream_id", flat=True)), True)


def test_a_fact_far_back_is_found_while_others_are_appended(facts, shown, monkeypatch):
    CacheInvalidation.objects.bulk_create([fact(f"number {n}") for n in range(3_000)])
    wait_for_linear(CacheInvalidation.objects.latest("stream_id").stream_id)
    monkeypatch.setattr(content_search, "SEARCH_SECONDS", -1.0)
    numbers, page = shown(text="100%")
    seen = numbers
    while link := re.search(r'id="facts-older" href="\?([^"]*)"', page):
        stream().append(fact("100%"))
        numbers, page = shown(**dict(parse_qsl(unescape(link[1]))))
        seen += numbers
    assert seen == [facts[3]]


def test_a_search_for_content_goes_on_while_there_is_time_and_ends_with_a_page(facts, shown, monkeypatch):
    monkeypatch.setattr(content_search, "FIRST_ROWS", 1)
    monkeypatch.setattr(content_search, "_GROWTH", 1)
    monkeypatch.setattr(content_search, "SEARCH_SECONDS", 3_600.0)
    assert shown(text="alpha")[0] == [facts[2], facts[0]]
    monkeypatch.setattr(fact_search, "FACTS_PER_PAGE", 1)
    with CaptureQueriesContext(connection) as queries:
        assert shown(text="alpha")[0] == [facts[2]]
    assert sum("strpos(" in one["sql"] for one in queries.captured_queries) == 6, (
        "one fact more than is shown, and no further"
    )


def test_large_rows_are_read_a_few_at_a_time(facts, searched, shown, monkeypatch):
    """A thousand rows of 750 kB took 15 seconds, and a place of the pages for so long."""
    monkeypatch.setattr(content_search, "_FEW_ROWS", 2)
    monkeypatch.setattr(content_search, "_LONGEST_SECONDS", 0.05)
    monkeypatch.setattr(content_search, "SEARCH_SECONDS", 3_600.0)
    wait_for_linear(stream().append(*(fact("x" * 3_000_000) for _ in range(12)))[-1])
    with CaptureQueriesContext(connection) as queries:
        assert searched(text="alphabet")[0] == [facts[2]]
    read = [one for one in queries.captured_queries if "strpos(" in one["sql"]]
    assert len(read) > 2 and "ROWS WITH TIES" in read[0]["sql"], "the first one was ended"


@pytest.mark.parametrize(
    ("rows", "took", "left", "following"),
    [
        (1_000, 0.001, 0.2, 4_000),
        (64_000, 0.04, 0.1, 128_000),
        (1_000, 0.3, -0.1, 0),
        (256_000, 0.16, 0.0002, 0),
    ],
)
def test_statements_grow_as_far_as_the_time_allows(rows, took, left, following):
    assert content_search._next_rows(rows, took, left) == following


def test_a_value_that_an_index_has_is_found_at_once(facts, shown, monkeypatch):
    monkeypatch.setattr(content_search, "FIRST_ROWS", 1)
    monkeypatch.setattr(content_search, "SEARCH_SECONDS", -1.0)
    numbers, page = shown(text=str(facts[0]))
    assert (numbers[0], "Equals it" in page) == (facts[0], True), "by its ID, which an index begins with"
    assert shown(text=str(facts[0]), until="2h")[0] == [], "not that it is newer than asked for"
    assert "Equals it" not in shown(text="beta")[1], "no index begins with the name"
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX of_the_test ON streams_cacheinvalidation (cache_name)")
        try:
            assert shown(text="Alpha")[0] == [facts[0]]
            monkeypatch.setattr(content_search, "_COMMON", 1)
            assert shown(text="Alpha")[0] == [], "a common value is left to the search"
        finally:
            cursor.execute("DROP INDEX of_the_test")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("jsonb", '{"a": "say \\"hi\\""}', 'y "hi'),
        ("json", '{"a": "Gr\\u00f6\\u00dfe"}', "größe"),
        ("uuid", "0190a0b0-0000-7000-8000-00000000abcd", "8000-00000000ABC"),
        ("timestamptz", "2021-03-04 05:06:07+00", "2021-03-04 05:06"),
        ("numeric", "-12.50", "-12.5"),
        ("float8", "infinity", "Infin"),
        ("bool", "true", "TRUE"),
        ("text[]", '{"two words",b}', "O WORDS"),
        ("bytea", r"\xdeadbeef", "DEADbe"),
        ("int4range", "[4,9)", "[4,9)"),
        ('text COLLATE "C"', "x_Y", "X_y"),
    ],
)
def test_values_of_each_type_are_found(facts, shown, kind, value, text):
    (number,) = stream().append(fact("it"))
    wait_for_linear(number)
    table = "streams_cacheinvalidation"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD of_test {kind}")
        try:
            with changing_facts(connection):
                cursor.execute(f"UPDATE {table} SET of_test = %s WHERE stream_id = %s", [value, number])
            assert shown(text=text)[0] == [number]
        finally:
            cursor.execute(f"ALTER TABLE {table} DROP of_test")


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
