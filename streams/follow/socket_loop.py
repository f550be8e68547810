"""Runs one handler on the facts that a replication server sends. Facts that the loop missed are read from the table.

Two threads share the work. In the first thread, an asyncio event loop runs the follower, which is connected to the
server. The second thread calls the handler and stores the cursor. So the first thread can answer the server while a
chunk is handled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from django.db import connections

from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.errors import EpochChanged
from streams.follow.asked_retries import AskedRetries
from streams.follow.chunks import Chunk, pieces
from streams.follow.cursors import Owner
from streams.follow.delivery import ConnectionLost, Delivery
from streams.follow.handlers import Handler
from streams.follow.table_loop import HandlerLoop
from streams.replication.client.connection import Connector
from streams.replication.client.follower import Follower, FollowerOptions
from streams.replication.client.table_catch_up import TableCatchUp
from streams.replication.protocol.ordering import FollowedRow, View

__all__ = ["SocketLoop", "token_after"]


def token_after(view: View, cursor: VectorToken, rows: Sequence[FollowedRow]) -> VectorToken:
    """Returns the reader's cursor after it has handled ``rows``. ``view`` is the delivery order of the rows.

    In linear order, the new cursor covers all facts of all writers up to the last row. In the order per writer, the
    cursor advances for each writer in ``rows``, to the last row of this writer.
    """
    if view is View.LINEAR:
        return cursor.merge(VectorToken(rows[-1].token))
    highest: dict[str, int] = {}
    for row in rows:
        highest[row.instance] = max(row.token, highest.get(row.instance, 0))
    return cursor.merge(VectorToken.of(cursor.base, highest))


class SocketLoop(HandlerLoop):
    """A handler loop that receives its facts from a replication server."""

    def __init__(
        self,
        handler: Handler,
        owner: Owner,
        stop: threading.Event,
        began: Callable[[], None],
        retries: AskedRetries,
        server: Connector,
    ) -> None:
        super().__init__(handler, owner, stop, began, retries)
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._follower: Follower | None = None
        self._is_cut = False
        self._work = ThreadPoolExecutor(1, thread_name_prefix=f"handle-{handler.stream}")

    def positions(self) -> dict[str, int]:
        known = self._follower.positions().get(self.handler.stream, {}) if self._follower is not None else {}
        cursor = self.cursor
        return {} if cursor is None else {writer: cursor.position_of(writer) for writer in known}

    def wake(self) -> None:
        loop, follower = self._loop, self._follower
        if self._stop.is_set() and loop is not None and follower is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(follower.finish)

    def close(self) -> None:
        self._work.submit(connections.close_all).result()
        self._work.shutdown(wait=True)
        super().close()

    def follow(self, delivery: Delivery) -> None:
        asyncio.run(self._follow(delivery))

    async def _follow(self, delivery: Delivery) -> None:
        handler = self.handler
        catch_up = TableCatchUp(handler.streams_database, f"replsite fetch {handler.reader}")
        options = FollowerOptions(
            address=None,
            name=handler.reader,
            server_name=stream_settings().server_name,
            streams=[handler.stream],
            start={handler.stream: delivery.stored},
            view=handler.view,
            connector=self._server,
        )
        loop = self._loop = asyncio.get_running_loop()

        async def handle(rows: Sequence[FollowedRow]) -> None:
            await loop.run_in_executor(self._work, self._take, delivery, rows)

        follower = self._follower = Follower(options, handle, catch_up)
        if self._stop.is_set():
            follower.finish()
            return
        keeper = asyncio.create_task(self._store_now_and_then(delivery, follower))
        keeper.add_done_callback(lambda task: follower.finish())  # it ends only by an error, or is cancelled below
        try:
            await follower.run()
        except EpochChanged as restored:  # the loop checks the epoch of the stored cursor and continues from it
            raise ConnectionLost(str(restored)) from restored
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])
            await catch_up.close()
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            raise error
        await loop.run_in_executor(self._work, self._store, delivery, self._reached(follower))
        await loop.run_in_executor(self._work, self._leave_retries)

    def _take(self, delivery: Delivery, rows: Sequence[FollowedRow]) -> None:
        """Delivers the rows to the handler, in chunks of about ``chunk_rows`` rows. Runs in the handler's thread."""
        view = self.handler.view
        for piece in pieces(rows, self.handler.chunk_rows):
            chunk = Chunk(self.handler.stream, piece, self._streams_using)
            upto = token_after(view, delivery.stored, piece)
            self._deliver(delivery, chunk, lambda at, part: token_after(view, at, part.rows), upto)
            self.cursor = delivery.stored
            if self._stop.is_set():
                # The follower assumes that all rows are handled once this method returns. Without the flag, ``_store`` would
                # then move the cursor past the chunks that were not delivered.
                self._is_cut = True
                return

    def _reached(self, follower: Follower) -> VectorToken:
        stream = self.handler.stream
        linear = follower.linear(stream)
        return VectorToken.of(linear, {} if self.handler.view is View.LINEAR else follower.positions().get(stream, {}))

    async def _store_now_and_then(self, delivery: Delivery, follower: Follower) -> None:
        """Stores the cursor once per heartbeat interval, so that the stored cursor advances even if no facts arrive.

        After each store, retries dead letters if an operator has asked for it. While this task waits, arriving rows are
        delivered.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(stream_settings().heartbeat_seconds)
            reached = self._reached(follower)
            await loop.run_in_executor(self._work, self._store, delivery, reached)
            while await loop.run_in_executor(self._work, self._retry_asked):
                pass

    def _store(self, delivery: Delivery, reached: VectorToken) -> None:
        if not self._is_cut:
            delivery.store(delivery.stored.merge(reached))
            self.cursor = delivery.stored
