"""The page of facts in a real Chromium: further facts show by themselves, through a restart of the site and its database."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from streams.catalog.models import CacheInvalidation
from tests.support.browsing import BROWSER, PASSWORD, Site, keep, log_in
from tests.support.npm import CLIENT, needs_npm
from tests.support.proxy import proxy_to
from tests.support.writing import append, fact, stream, wait_for_linear

pytestmark = BROWSER
#: Facts of a writer whose values are as slow to compare as they are long, so that a request cannot read all of them.
_MANY = """
SET LOCAL streams.maintenance = on;
INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name)
SELECT nextval(%s), %s, repeat('sough', 60) FROM generate_series(1, %s)
"""


@pytest.fixture
def between(database_url, monkeypatch):
    """Stands between the site and its database, and can be cut."""
    with proxy_to(urlsplit(database_url).port) as proxy:
        yield proxy


@pytest.fixture
def site(start_manage, free_port, between, database_url):
    address = database_url.replace(f":{urlsplit(database_url).port}/", f":{between.port}/")

    def start(*arguments):
        return start_manage(*arguments, env={"DATABASE_URL": address})

    return Site(start, free_port)


def shown(page) -> list[int]:
    return [int(text) for text in page.locator("#facts tr th").all_text_contents()]


def until(page, number: int) -> None:
    page.locator("#facts tr th", has_text=re.compile(f"^{number}$")).wait_for()


@pytest.mark.scenario
def test_facts_come_by_themselves_through_restarts(site, between, boss, new_page):
    known = append(3)
    page = new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    log_in(page)
    page.locator("a[href$='/admin/facts/']").first.click()
    page.get_by_role("link", name="caches", exact=True).click()
    status = page.locator("#facts-status")
    status.get_by_text("live", exact=True).wait_for()
    assert shown(page) == known[::-1]
    known += append(2)
    until(page, known[-1])
    assert "cache_name" in page.locator("#facts tr").first.text_content()
    keep(page, "facts")

    site.kill()
    status.get_by_text("waiting").wait_for()
    known += append(2)
    site.start()
    until(page, known[-1])
    status.get_by_text("live", exact=True).wait_for()

    between.refuse()
    between.cut()
    known += append(2)
    between.refuse(False)
    known += append()
    until(page, known[-1])
    assert shown(page) == known[::-1]

    known += append(60)
    until(page, known[-1])
    assert shown(page) == known[:-51:-1]
    assert not errors


def test_facts_are_searched_without_losing_the_way_back(site, boss, new_page):
    known = stream().append(*map(fact, ["alpha", "beta", f"alphabet{'x' * 60}"]))
    page = new_page()
    log_in(page)
    page.goto("/admin/facts/?stream=caches")
    page.locator("#facts-status").get_by_text("live", exact=True).wait_for()
    page.get_by_label("Contains").fill("ALPHA")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("heading", name="Contains it").wait_for()
    assert shown(page) == [known[2], known[0]]
    keep(page, "facts-found")
    page.set_viewport_size({"width": 390, "height": 844})
    keep(page, "facts-found-phone")
    cut = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.textContent)"
    assert page.locator("#facts td").evaluate_all(cut) == []
    page.emulate_media(color_scheme="dark")
    keep(page, "facts-found-dark")
    page.get_by_role("link", name="Newest facts").click()
    until(page, known[1])


def test_a_fact_far_back_is_found_without_a_click(site, boss, new_page):
    """And one below the place where the search was, at its end; the viewer may stop it; without scripts a link goes on."""
    (far, further) = stream().append(fact("sought Alpha"), fact("sought Beta"))
    writer = CacheInvalidation.objects.get(stream_id=far).instance_name
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_MANY, [stream().declaration.sequence, writer, 200_000])
    wait_for_linear(*append())
    page = new_page()
    log_in(page)
    page.goto("/admin/facts/?stream=caches&text=SOUGHT")
    page.get_by_text("That is all.").wait_for()
    assert shown(page) == [further, far]
    assert page.locator("#facts-about").text_content() == "Newest first."
    assert page.locator("#facts-older, #facts-reached").count() == 0
    keep(page, "facts-far")

    page.route("**/admin/facts/?*id=*", lambda route: None)  # no answer comes
    page.goto("/admin/facts/?stream=caches&text=sought+nowhere")
    page.get_by_role("button", name="Stop", exact=True).wait_for()
    assert not page.get_by_role("link", name="Search further back").is_visible()
    keep(page, "facts-searching")
    page.set_viewport_size({"width": 390, "height": 844})
    keep(page, "facts-searching-phone")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text("Stopped.").wait_for()
    page.get_by_role("link", name="Search further back").wait_for()

    plain = new_page(java_script_enabled=False)
    log_in(plain)
    plain.goto("/admin/facts/?stream=caches&text=sought+nowhere")
    before = plain.locator("#facts-reached").text_content()
    plain.get_by_role("link", name="Search further back").click()
    plain.wait_for_url("**&id=*")
    assert plain.locator("#facts-reached").text_content() != before


@pytest.mark.scenario
@needs_npm
def test_a_published_client_reads_a_stream_through_restarts(site, between, boss, new_page):
    """On this page, whose address and session it uses: by server-sent events, and by long polls."""
    known = [f"fact {number}" for number in range(9)]
    stream().append(*map(fact, known[:3]))
    page = new_page()
    log_in(page)
    page.goto("/admin/facts/?stream=caches")
    page.route("**/durable-streams.js", lambda route: route.fulfill(path=CLIENT, content_type="text/javascript"))
    page.evaluate(
        """async () => {
        const { stream } = await import("/durable-streams.js");
        const url = new URL("/admin/facts/stream/?stream=caches", location);
        window.seen = { sse: [], true: [] };
        for (const live of ["sse", true]) (async () => { for (let offset = "-1";;) {
            try {
                const session = await stream({ url, offset, live });
                session.subscribeJson((batch) => {
                    seen[live].push(...batch.items.map((row) => row.cache_name));
                    offset = batch.offset; });
                await session.closed;
            } catch (error) { if (error.status) throw error; }
        } })();
        }"""
    )
    page.wait_for_function("seen.sse.length && seen.true.length")
    site.kill()
    stream().append(*map(fact, known[3:6]))
    site.start()
    between.refuse()
    between.cut()
    stream().append(*map(fact, known[6:]))
    between.refuse(False)
    page.wait_for_function(f"seen.sse.length >= {len(known)} && seen.true.length >= {len(known)}")
    assert page.evaluate("seen") == {"sse": known, "true": known}


def test_only_those_who_may_view_the_tables_get_facts(site, boss, new_page):
    append()
    User.objects.create_user("clerk", password=PASSWORD, is_staff=True)
    page = new_page()
    assert page.request.get("/admin/facts/events/?stream=caches").status == 403
    log_in(page, "clerk")
    assert page.request.get("/admin/facts/?stream=caches").status == 404
    for address in ("events", "stream"):
        assert page.request.get(f"/admin/facts/{address}/?stream=caches").status == 403
        assert page.request.get(f"/admin/facts/{address}/?stream=none").status == 404
