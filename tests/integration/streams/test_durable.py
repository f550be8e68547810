"""``durable``: pages, long polls and events of the Durable Streams protocol, offsets, caching, and what is refused."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient, AsyncRequestFactory, override_settings
from django.urls import path

from streams import durable, epochs
from streams.browsers import clients
from streams.browsers import durable as module
from streams.maintenance.trim import Keep, TrimRequest, trim
from streams.waiting import listen
from streams.waiting.listen import PAGE_FACTS
from tests.support.async_waiting import close_connections_of_threads, listeners_that_wait, wait_for
from tests.support.waiting import wait_until
from tests.support.writing import append, fact, session, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
aappend = sync_to_async(append)


@pytest.fixture(scope="module", autouse=True)
def _threads():
    yield
    close_connections_of_threads()


@pytest.fixture(autouse=True)
def _counts():
    clients.counts.clear()
    yield
    wait_until(lambda: clients.open_clients() == 0)


def view(**options: Any) -> Any:
    given = {"allow": lambda request: True, "render": lambda one: {"n": one.stream_id}, "beat": 0.2}
    return durable(stream(), **given | options)


async def ask(of: Any, query: str = "", method: str = "get", **headers: str) -> Any:
    async with asyncio.timeout(20):
        return await of(getattr(AsyncRequestFactory(), method)(f"/orders/{query}", headers=headers))


def numbers(text: str | bytes) -> list[int]:
    return [one["n"] for one in json.loads(text)]


def next_of(response: Any) -> str:
    return str(response["Stream-Next-Offset"])


# --- pages ------------------------------------------------------------------------------------------------------------


async def test_a_reader_gets_all_pages_from_the_beginning():
    expected, found, offset = await aappend(2 * PAGE_FACTS + 1), [], "-1"
    offsets = []
    while True:
        response = await ask(view(), f"?offset={offset}")
        assert (response.status_code, response["Content-Type"]) == (200, "application/json")
        offset = next_of(response)
        offsets.append(offset)
        found += numbers(response.content)
        if "Stream-Up-To-Date" in response:
            break
    assert found == expected
    assert offsets == sorted(set(offsets)) and len(offsets) == 3
    response = await ask(view(), f"?offset={offset}")
    assert (response.content, next_of(response), response["Stream-Up-To-Date"]) == (b"[]", offset, "true")
    assert clients.counts == {"opened": 4, "answered": 4}


async def test_an_offset_is_a_token_in_another_form():
    await aappend(3)
    page = await stream().aread(limit=1)
    position, word = page.next.split("@")
    offset = f"{word}_{int(position):019d}"
    assert numbers((await ask(view(), f"?offset={offset}")).content) == [
        one.stream_id for one in (await stream().aread(page.next)).facts
    ]


def test_offsets_sort_as_their_positions():
    positions = [0, 1, 9, 10, 99, 100, 2**62]
    offsets = [module._offset_of(f"{position}@k3xw5q9apm") for position in positions]
    assert offsets == sorted(offsets)
    assert [module._token_of(offset) for offset in offsets] == [f"{position}@k3xw5q9apm" for position in positions]
    assert module._token_of(module._offset_of("7")) == "7", "of a database that has no epoch yet"


async def test_head_and_now_tell_the_end():
    await aappend(3)
    end = next_of(await ask(view()))
    for response in (await ask(view(), method="head"), await ask(view(), "?offset=now")):
        assert (next_of(response), response["Stream-Up-To-Date"], response["Cache-Control"]) == (
            end,
            "true",
            "no-store",
        )
        assert "ETag" not in response
    assert response.content == b"[]"


async def test_texts_are_sent_as_json_or_as_they_are():
    def texts(one: Any) -> str:
        return f"{one.stream_id}\n"

    expected = await aappend(2)
    response = await ask(view(render=texts, content_type="text/plain; charset=utf-8"))
    assert (response["Content-Type"], response.content.decode()) == (
        "text/plain; charset=utf-8",
        "".join(f"{number}\n" for number in expected),
    )
    assert json.loads((await ask(view(render=texts))).content) == [f"{number}\n" for number in expected]


async def test_the_rows_of_a_fact_are_never_split():
    (before,) = await aappend()

    def write() -> int:
        with stream().reserve() as reservation:
            rows = [fact() for _ in range(PAGE_FACTS)]
            for row in rows:
                row.stream_id = reservation.ids[0]
            reservation.write(*rows)
        return int(reservation.ids[0])

    token = await sync_to_async(write)()
    pages, offset = [], "-1"
    for _ in range(2):
        response = await ask(view(), f"?offset={offset}")
        offset = next_of(response)
        pages.append(numbers(response.content))
    assert pages == [[before], [token] * PAGE_FACTS]


# --- caching ----------------------------------------------------------------------------------------------------------


async def test_history_may_be_kept_and_the_end_is_asked_for_again():
    await aappend(PAGE_FACTS + 1)
    begin = (await stream().aread(limit=1)).facts[0].token
    offset = module._offset_of(begin)
    await aappend(1)
    assert (await ask(view(), f"?offset={offset}"))[
        "Cache-Control"
    ] == "private, max-age=60, stale-while-revalidate=300"
    assert (await ask(view(public=True), f"?offset={offset}"))["Cache-Control"].startswith("public, max-age=60")
    assert (await ask(view()))["Cache-Control"] == "private, no-cache"
    end = next_of(await ask(view(), f"?offset={offset}"))
    response = await ask(view(), f"?offset={end}")
    assert (response["Cache-Control"], response["Vary"]) == ("private, no-cache", "Authorization, Cookie")
    assert "Vary" not in await ask(view(public=True), f"?offset={end}")


async def test_what_did_not_change_is_not_sent_again():
    await aappend()
    first = await ask(view())
    again = await ask(view(), **{"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content, next_of(again)) == (304, b"", next_of(first))
    assert (again["ETag"], again["Stream-Up-To-Date"]) == (first["ETag"], "true")
    assert (await ask(view(render=lambda one: 1), **{"If-None-Match": first["ETag"]})).status_code == 200
    await aappend()
    assert (await ask(view(), **{"If-None-Match": first["ETag"]})).status_code == 200


# --- long polls -------------------------------------------------------------------------------------------------------


async def test_a_long_poll_waits_for_a_fact():
    await aappend()
    offset = "now"
    for _ in range(2):
        opened = clients.counts["opened"] + 1
        polling = asyncio.create_task(ask(view(beat=20), f"?offset={offset}&live=long-poll"))
        await wait_for(lambda opened=opened: clients.counts["opened"] == opened)
        expected = await aappend(2)
        response = await polling
        assert (response.status_code, numbers(response.content)) == (200, expected)
        assert response["Stream-Up-To-Date"] == "true" and int(response["Stream-Cursor"]) > 1_000_000
        offset = next_of(response)
        assert offset == next_of(await ask(view()))


async def test_long_polls_at_the_same_place_share_one_read(monkeypatch):
    reads, real = [], listen.page_after
    monkeypatch.setattr(listen, "page_after", lambda *given, **more: reads.append(1) or real(*given, **more))
    await aappend()
    offset = next_of(await ask(view()))
    assert (await ask(view(), f"?offset={offset}&live=long-poll")).status_code == 204  # now the end is known
    reads.clear()
    for _ in range(2):
        polling = [asyncio.create_task(ask(view(beat=20), f"?offset={offset}&live=long-poll")) for _ in range(20)]
        await wait_for(lambda: listeners_that_wait() == 20)
        expected = await aappend(2)
        answers = await asyncio.gather(*polling)
        assert [numbers(answer.content) for answer in answers] == [expected] * 20
        (offset,) = {next_of(answer) for answer in answers}
    assert len(reads) == 2


async def test_a_long_poll_gets_at_once_what_is_there():
    expected = await aappend(3)
    response = await ask(view(beat=3_600), "?offset=-1&live=long-poll")
    assert (response.status_code, numbers(response.content)) == (200, expected)


async def test_a_long_poll_without_a_fact_ends_after_its_time():
    await aappend()
    end = next_of(await ask(view()))
    response = await ask(view(), f"?offset={end}&live=long-poll")
    assert (response.status_code, response.content, next_of(response)) == (204, b"", end)
    assert (response["Stream-Up-To-Date"], response["Cache-Control"]) == ("true", "no-store")


async def test_a_cursor_goes_on():
    await aappend()
    first = int((await ask(view(), "?offset=-1&live=long-poll"))["Stream-Cursor"])
    for given in (first, first + 500):
        next_one = int((await ask(view(), f"?offset=-1&live=long-poll&cursor={given}"))["Stream-Cursor"])
        assert given < next_one <= given + 180
    for given in ("0", "x", "9" * 40):
        assert int((await ask(view(), f"?offset=-1&live=long-poll&cursor={given}"))["Stream-Cursor"]) - first in (0, 1)


async def test_all_long_polls_end_when_the_process_stops():
    polling = asyncio.create_task(ask(view(beat=3_600), "?offset=now&live=long-poll"))
    await wait_for(lambda: clients.open_clients() == 1 and clients.counts["opened"] == 1)
    clients.end_all()
    response = await polling
    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert clients.counts["stopped"] == 1


async def test_a_client_that_leaves_holds_no_place():
    polling = asyncio.create_task(ask(view(beat=3_600), "?offset=now&live=long-poll"))
    await wait_for(lambda: clients.counts["opened"] == 1)
    polling.cancel()
    await asyncio.wait([polling])
    assert (clients.open_clients(), clients.counts["left"]) == (0, 1)


# --- events -----------------------------------------------------------------------------------------------------------


async def take(answer: Any, count: int) -> list[tuple[str, Any]]:
    """The next events: name and value."""
    found: list[tuple[str, Any]] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for block in (await anext(answer)).decode().split("\n\n")[:-1]:
                name, *lines = block.split("\n")
                found.append((name.removeprefix("event: "), "\n".join(line.removeprefix("data:") for line in lines)))
    return found


async def test_events_come_in_pairs_and_go_on_with_each_fact():
    expected = await aappend(2)
    response = await ask(view(), "?offset=-1&live=sse")
    assert (response.status_code, response["Content-Type"]) == (200, "text/event-stream")
    assert "no-cache" in response["Cache-Control"] and "Content-Length" not in response
    async with aclosing(aiter(response)) as answer:
        (data, rows), (control, first) = await take(answer, 2)
        assert (data, numbers(rows), control) == ("data", expected, "control")
        assert json.loads(first)["upToDate"] is True
        (beat, same) = (await take(answer, 1))[0]
        assert (beat, json.loads(same)["streamNextOffset"]) == ("control", json.loads(first)["streamNextOffset"])
        (number,) = await aappend()
        found = [one for one in await take(answer, 3) if one[0] == "data"] or await take(answer, 1)
        assert numbers(found[0][1]) == [number]
    response.close()


async def test_text_stays_within_its_event():
    await sync_to_async(lambda: stream().append(fact(" a\n\nevent: control\r\ndata: {}\r\rb")))()
    response = await ask(view(render=lambda one: one.cache_name, content_type="text/plain"), "?offset=-1&live=sse")
    async with aclosing(aiter(response)) as answer:
        part = (await anext(answer)).decode()
    response.close()
    data, control, rest = part.split("\n\n")
    assert data == "event: data\ndata:  a\ndata:\ndata:event: control\ndata:data: {}\ndata:\ndata:b"
    assert (control.split("\n")[0], rest) == ("event: control", "")


async def test_facts_that_were_read_together_are_one_event():
    expected = await aappend(2 * PAGE_FACTS)
    response = await ask(view(), "?offset=-1&live=sse")
    async with aclosing(aiter(response)) as answer:
        events = [one for one in await take(answer, 4) if one[0] == "data"]
    response.close()
    assert [numbers(rows) for _, rows in events] == [expected[:PAGE_FACTS], expected[PAGE_FACTS:]]


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
async def test_every_fact_arrives_once_through_many_short_answers(live):
    expected, found, offset = await aappend(2 * PAGE_FACTS), [], "-1"
    with override_settings(REPLSITE_BROWSER_ANSWER_BYTES=1_000):
        while len(found) < len(expected):
            response = await ask(view(), f"?offset={offset}{live}")
            if "sse" in live:
                async with aclosing(aiter(response)) as answer:
                    (_, rows), (_, control) = await take(answer, 2)
                offset = json.loads(control)["streamNextOffset"]
            else:
                rows, offset = response.content, next_of(response)
            response.close()
            assert len(rows) < 1_500
            found += numbers(rows)
    assert found == expected


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
     "?offset=", "?offset=1", "?offset=-2", "?offset=NOW", "?offset=%EF%BC%91" + 18 * "0",
     "?offset=4@k3xw5q9apm", "?offset=0,1", "?offset=0%201", "?offset=../x", "?offset=1%00",
     "?offset=-1&offset=-1", "?live=sse", "?live=long-poll", "?offset=-1&live=x", "?offset=" + "9" * 2000,
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_refused(query):
    response = await ask(view(), query)
    assert (response.status_code, response["Cache-Control"]) == (400, "no-store")
    assert response["X-Content-Type-Options"] == "nosniff"


async def test_a_forged_offset_gives_no_more_than_any_other():
    expected = await aappend(3)
    word = next_of(await ask(view())).partition("_")[0]
    far = f"{word}_{'9' * 19}"
    response = await ask(view(), f"?offset={far}")
    assert (response.content, next_of(response), response["Stream-Up-To-Date"]) == (b"[]", far, "true")
    assert (await ask(view(), f"?offset={far}&live=long-poll")).status_code == 204
    assert numbers((await ask(view(), f"?offset={word}_{0:019d}")).content) == expected
    for live in ("", "&live=sse", "&live=long-poll"):
        assert (await ask(view(), f"?offset=another_{0:019d}{live}")).status_code == 410


async def test_events_are_refused_for_what_is_no_text():
    assert (await ask(view(content_type="application/octet-stream"), "?offset=-1&live=sse")).status_code == 400


async def test_only_reading_and_only_who_may():
    for method in ("post", "put", "delete", "options"):
        response = await ask(view(), method=method)
        assert (response.status_code, response["Allow"]) == (405, "GET, HEAD")
    for query, method in (("", "get"), ("", "head"), ("?offset=now&live=long-poll", "get"), ("?live=sse", "get")):
        response = await ask(view(allow=lambda request: False), query, method)
        assert (response.status_code, response["Cross-Origin-Resource-Policy"]) == (403, "same-origin")
        assert "Stream-Next-Offset" not in response
    with pytest.raises(TypeError, match="allow"):
        durable(stream(), render=str)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no names"):
        durable(stream(), allow=bool)


@pytest.mark.parametrize("live", ["", "&live=sse", "&live=long-poll"])
async def test_a_fault_of_the_project_keeps_no_place(live):
    def fault(_: Any) -> bool:
        raise ZeroDivisionError

    await aappend()
    for given in ({"allow": fault}, {"render": fault}):
        with pytest.raises(ZeroDivisionError):
            await ask(view(**given), f"?offset=-1{live}")
    assert (clients.open_clients(), clients.counts) == (0, {"refused": 2})


async def test_a_fault_of_render_ends_a_long_poll_and_is_logged(caplog):
    polling = asyncio.create_task(ask(view(render=lambda one: 1 / 0, beat=3_600), "?offset=now&live=long-poll"))
    await wait_for(lambda: clients.counts["opened"] == 1)
    await aappend()
    assert (await polling).status_code == 503
    assert "browsers.failed" in caplog.text


async def test_more_than_allowed_are_sent_away():
    with override_settings(REPLSITE_BROWSER_LIMIT=1):
        polling = asyncio.create_task(ask(view(beat=3_600), "?offset=now&live=long-poll"))
        await wait_for(lambda: clients.counts["opened"] == 1)
        assert (await ask(view()))["Retry-After"] == "5"
        polling.cancel()
        await asyncio.wait([polling])
        assert (await ask(view())).status_code == 200


async def test_an_offset_from_before_a_restore_is_gone():
    await aappend()
    before = next_of(await ask(view()))
    response = await ask(view(), f"?offset={before}&live=sse")
    polling = asyncio.create_task(ask(view(beat=3_600), f"?offset={before}&live=long-poll"))
    async with aclosing(aiter(response)) as answer:
        await take(answer, 1)
        await wait_for(lambda: clients.counts["opened"] == 3)

        def restore():
            with session() as cursor:
                epochs.begin_epoch(cursor, "test")

        await sync_to_async(restore)()
        await aappend()
        async with asyncio.timeout(20):
            came = [part async for part in answer]
        assert b"event: data" not in b"".join(came)
    response.close()
    assert (await polling).status_code == 410
    for live in ("", "&live=sse", "&live=long-poll"):
        assert (await ask(view(), f"?offset={before}{live}")).status_code == 410
    assert (await ask(view())).status_code == 200


async def test_an_offset_of_facts_that_were_trimmed_is_gone():
    def lose_some():
        wait_for_linear(append(10)[-1])
        with session() as cursor:
            list(trim(cursor, TrimRequest(stream(), Keep(facts=2), settle_seconds=0.0)))

    await aappend()
    begin = (await stream().aread(limit=1)).next
    await sync_to_async(lose_some)()
    assert (await ask(view(), f"?offset={module._offset_of(begin)}")).status_code == 410
    assert len(numbers((await ask(view())).content)) == 2


# --- a team's own test ------------------------------------------------------------------------------------------------

urlpatterns = [path("facts/", view()), path("staff/", view(allow=lambda request: request.user.is_staff))]


@override_settings(ROOT_URLCONF=__name__)
async def test_who_is_not_logged_in_gets_nothing():
    client = AsyncClient()
    assert (await client.get("/staff/")).status_code == 403
    await client.aforce_login(await User.objects.acreate(username="boss", is_staff=True))
    response = await client.get("/staff/")
    assert (response.status_code, response["Vary"]) == (200, "Authorization, Cookie")


@pytest.mark.django_db
@override_settings(ROOT_URLCONF=__name__)
def test_facts_of_the_tests_own_transaction_are_there():
    async def visit():
        expected = await aappend(2)
        response = await AsyncClient().get("/facts/")
        assert numbers(response.content) == expected
        polling = asyncio.create_task(
            AsyncClient().get(f"/facts/?offset={response['Stream-Next-Offset']}&live=long-poll")
        )
        expected = await aappend()
        assert numbers((await polling).content) == expected

    async_to_sync(visit)()
