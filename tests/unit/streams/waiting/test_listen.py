"""Listeners of one event loop share a read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from streams.waiting.listen import shared_read


def test_a_read_that_is_over_is_not_shared():
    """A caller that was woken meanwhile would get the same page without a pause, again and again, and nothing else would run."""

    async def listen() -> tuple[list[str], list[str]]:
        woken, pages = asyncio.Event(), iter(["empty", "with the fact"])

        async def read():
            await asyncio.sleep(0)
            woken.set()  # the fact's position is known, after the page was read
            return [next(pages)]

        async def shared():
            return await shared_read(SimpleNamespace(name="caches"), "5", "default", read)

        async def late():
            await woken.wait()
            return await shared()

        return await asyncio.gather(shared(), late())

    assert asyncio.run(listen()) == [["empty"], ["with the fact"]]
