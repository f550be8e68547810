"""A follower: connects, comes back after every loss, fetches what it missed, and hands facts to a handler.

Facts are handed out in the view of the caller's choice, each once per follower object, in order per writer; a lost
connection loses and repeats nothing. While the handler works, the socket is not read: the buffers are bounded, and a
server that grows tired of waiting may cut us, since what we missed is in the table.
Assumes a single event loop. The rules are in ``cursors`` and ``views``; here bytes and facts are moved.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from streams import registry
from streams.core.tokens import VectorToken
from streams.reading import cache_feed
from streams.replication.client.connection import Connector, Counters, Link, TcpConnector
from streams.replication.client.table_catch_up import CatchUp, NoCatchUp, Writers
from streams.replication.common.command_counts import received_rdata
from streams.replication.common.command_hooks import tell
from streams.replication.errors import BadAddress, CatchUpError, WrongRemote
from streams.replication.protocol.client_state import Speaker
from streams.replication.protocol.commands import Command, Error, Position, RData, Server, printable
from streams.replication.protocol.connection import CloseReason, Limits
from streams.replication.protocol.cursors import Cursors, Event, Fact, Gap, Moved, Reset
from streams.replication.protocol.ordering import FollowedRow, LinearView, Range, View
from streams.replication.protocol.reconnect import Backoff, Outcome
from streams.replication.transport.addresses import Address
from streams.runtime.logs import Condition, get_logger
from streams.runtime.text import OTHER

__all__ = ["Follower", "FollowerOptions", "Handler"]

log = get_logger(__name__)

Handler = Callable[[Sequence[FollowedRow]], Awaitable[None] | None]

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 1.0
ROWS_PER_FETCH = 10_000


@dataclass(frozen=True, slots=True)
class FollowerOptions:
    """Whom to follow, as whom, from where, and how.

    ``server_name`` None takes any server. ``start`` gives tokens per stream; other streams start at the current
    positions. ``own_instance``: the name under which this process writes itself, whose facts it need not hear.
    ``connector`` reaches the server in another way than plain TCP to ``address``. ``speaker`` tells the server about us; its
    ``greeting`` must be that of the connector, too, where one is given.
    """

    address: Address | None
    name: str
    server_name: str | None = None
    streams: Collection[str] | None = None
    start: Mapping[str, VectorToken] = field(default_factory=dict)
    view: View = View.WRITER
    own_instance: str | None = None
    limits: Limits = field(default_factory=Limits)
    connector: Connector | None = None
    speaker: Speaker | None = None

    def way(self) -> Connector:
        """How to reach the server."""
        if self.connector is not None:
            return self.connector
        if self.address is None:
            raise BadAddress("A follower needs an address or a connector: say whom to follow.")
        greeting = self.speaker.greeting if self.speaker is not None else tuple
        return TcpConnector(self.address, self.name, self.server_name, self.limits, greeting=greeting)


class _Finished(Exception):
    """The handler's owner has enough."""


class _HandlerFailed(Exception):
    """Carries the handler's error past everything that would take it for one of the connection."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Follower:
    """Follows one server. `handle` gets the rows of whole facts, in the order of the view; it may be async.

    ``progressed`` is called after facts were handled or positions moved; it may call `finish`. ``missed`` is told of ranges
    that nobody can give us, and of streams that began anew.
    """

    def __init__(
        self,
        options: FollowerOptions,
        handle: Handler,
        catch_up: CatchUp | None = None,
        progressed: Callable[[], None] = lambda: None,
        missed: Callable[[Gap | Reset], None] = lambda event: None,
    ) -> None:
        self.options = options
        self.connects = self.facts_missed_ranges = 0
        self.connector = options.way()
        self.link: Link | None = None
        self._not_connected = Condition(
            log, "follower.connection_failed", "follower.connected_again", server=str(self.connector)
        )
        self._handle = handle
        self._catch_up = catch_up or NoCatchUp()
        self._progressed = progressed
        self._missed = missed
        self._cursors = Cursors(options.streams, options.own_instance, self._can_reset)
        self._views: dict[str, LinearView] = {}
        self._starts: dict[str, VectorToken] = {}
        self._handled: dict[str, dict[str, int]] = {}
        self._handled_linear: dict[str, int] = {}
        self._handed_out: dict[str, int] = {}
        self._pending: list[FollowedRow] = []
        self._at_hand: Sequence[FollowedRow] = ()
        self._streams = {stream.name for stream in registry.all_streams()}
        self._touched: set[str] = set()
        self._has_learned = False
        self._outcome = Outcome.UNREACHABLE
        self._finishing = False
        self._task: asyncio.Task[None] | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until `finish`; raises `WrongRemote`, `TooManyWriters`, ``EpochChanged``, and what the handler raises."""
        self._task = asyncio.current_task()
        try:
            await self._start()
            await self._reconnect_for_ever()
        except _Finished:
            pass
        except _HandlerFailed as failure:
            raise failure.error from None
        except asyncio.CancelledError:
            if not self._finishing:
                raise
            if self._task is not None:
                self._task.uncancel()
        finally:
            self._task = None

    def finish(self) -> None:
        """End `run` soon and in order; facts that were handed out stay handed out."""
        self._finishing = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _start(self) -> None:
        """Take the start positions before connecting: every fact after this moment is ours to hand out."""
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            try:
                known = await self._catch_up.writers(self.options.streams)
                break
            except CatchUpError as error:
                log.warning("follower.start_delayed", error=str(error))
                await asyncio.sleep(retry_seconds)
                retry_seconds = min(retry_seconds * 2, LONGEST_RETRY_SECONDS)
        for stream in {*known, *self.options.start}:
            self._start_stream(stream, known.get(stream))

    def _start_stream(self, stream: str, writers: Writers | None) -> None:
        token = self.options.start.get(stream)
        if token is not None:
            names = {*token.entries, *(writers.positions if writers else ())}
            positions = {writer: token.position_of(writer) for writer in names}
        elif writers is not None:
            token, positions = VectorToken.of(writers.linear, writers.positions), dict(writers.positions)
        else:
            return
        self._cursors.start(stream, token.base, positions)
        self._starts[stream] = token
        self._views[stream] = LinearView(token.base)
        self._handed_out[stream] = token.base

    async def _reconnect_for_ever(self) -> None:
        backoff = Backoff()
        while True:
            self._outcome, began = Outcome.UNREACHABLE, time.monotonic()
            try:
                await self._follow_one_connection()
            except (OSError, CatchUpError) as error:
                self._not_connected.begins(error)
            await asyncio.sleep(backoff.seconds_after(self._outcome, time.monotonic() - began))

    # --- one connection -------------------------------------------------------------------------------------------

    async def _follow_one_connection(self) -> None:
        link = self.link = await self.connector.connect()
        self._not_connected.ends()
        self.connects += 1
        self._outcome = Outcome.USELESS
        self._cursors.begin_connection()
        self._has_learned = False
        speaker = self.options.speaker
        if speaker is not None:
            speaker.attach(link.send)
        try:
            while commands := await link.receive():
                await self._take(commands)
        finally:
            if speaker is not None:
                speaker.attach(None)
                for command in speaker.farewell() if self._finishing else ():
                    link.send(command)
            await link.close(CloseReason.STOPPING if self._finishing else CloseReason.SERVER_GONE)

    def _can_reset(self, stream: str) -> bool:
        return self.connector.can_reset(stream) and self._catch_up.can_reset(stream)

    def counters(self) -> Counters:
        """What went over the present connection, or the last one."""
        return self.link.counters if self.link is not None else Counters()

    # --- commands -------------------------------------------------------------------------------------------------

    async def _take(self, commands: Sequence[Command]) -> None:
        """The commands of one read, one after another, then what follows from all of them."""
        for stream, number in Counter(command.stream for command in commands if type(command) is RData).items():
            received_rdata.add(stream if stream in self._streams else OTHER, number)
        for command in commands:
            match command:
                case RData():
                    await self._follow_event(self._cursors.take(command))
                case Position():
                    await self._take_position(command)
                case Server(name):
                    self._check_server(name)
                case Error(text):
                    log.warning("follower.server_error", server=str(self.connector), text=printable(text[:500]))
                case _:
                    self._cursors.end_run()
                    tell(command)
        self._touched |= self._cursors.settled()
        await self._hand_out_linear()
        await self._hand_out()

    def _check_server(self, name: str) -> None:
        wanted = self.options.server_name
        if wanted is not None and name != wanted:
            raise WrongRemote(
                f"The server at {self.connector} calls itself {name!r}, not {wanted!r}. Correct the address, or follow "
                f"that server by its name: --server-name {printable(name)}."
            )

    async def _take_position(self, command: Position) -> None:
        self._outcome = Outcome.USED
        if not self._has_learned:
            await self._learn()
        event = self._cursors.take(command)
        if self._cursors.is_starting(command.stream):
            self._views[command.stream] = LinearView(self._cursors.linear(command.stream))
        await self._follow_event(event)

    async def _follow_event(self, event: Event | None) -> None:
        if isinstance(event, Gap):
            await self._fill(event)
        elif isinstance(event, Reset):
            await self._begin_anew(event)
        else:
            self._note(event)

    async def _begin_anew(self, event: Reset) -> None:
        """What is left of the stream's former life goes out; of its new one nothing is handled before it was fetched."""
        upto = event.token if self._catch_up.covers(event.stream) else 0
        if upto:
            self._cursors.rewind(event.stream, event.instance)
            event = Reset(event.stream, event.instance, 0)
        if event.stream in self._views:
            self._pending += self._views[event.stream].leave()
        await self._hand_out()
        self._missed(event)
        self._note(event)
        if upto:
            await self._fill(Gap(event.stream, event.instance, 0, upto))

    async def _learn(self) -> None:
        """All writers there are, read after the server has told its positions: none can have come in between."""
        self._has_learned = True
        for stream, writers in (await self._catch_up.writers(self.options.streams)).items():
            if self._cursors.knows(stream):
                self._cursors.learn(stream, writers.positions)
            else:
                self._start_stream(stream, writers)

    def _note(self, event: Event | None) -> None:
        match event:
            case Fact(stream, instance, token, rows):
                self._receive(FollowedRow(stream, instance, token, row) for row in rows)
                self._touched.add(stream)
            case Moved(stream):
                self._touched.add(stream)
            case Reset(stream, instance, token):
                log.info("follower.stream_reset", stream=stream, writer=instance, token=token)
                self._starts.pop(stream, None)  # its tokens come again
                self._views[stream] = LinearView(self._cursors.linear(stream))
                self._touched.add(stream)

    def _receive(self, rows: Iterable[FollowedRow]) -> None:
        """One fact."""
        if self.options.view is View.WRITER:
            self._pending += rows
        else:
            fact = list(rows)
            self._views[fact[0].stream].add(fact)

    async def _fill(self, gap: Gap) -> None:
        """Fetch what a POSITION says we may have missed."""
        self._touched.add(gap.stream)
        if not self._catch_up.covers(gap.stream):
            self.facts_missed_ranges += 1
            log.warning("follower.facts_missed", stream=gap.stream, writer=gap.instance, after=gap.after, upto=gap.upto)
            self._missed(gap)
        elif self.options.view is View.LINEAR:
            self._views[gap.stream].miss(gap.upto)
        else:
            async with aclosing(self._fetched(gap.stream, gap.instance, Range(gap.after, gap.upto))) as batches:
                async for rows, reached in batches:
                    self._pending += rows
                    await self._hand_out(partial(self._cursors.reached, gap.stream, gap.instance, reached))
        self._cursors.reached(gap.stream, gap.instance, gap.upto)

    async def _fetched(
        self, stream: str, writer: str | None, wanted: Range
    ) -> AsyncGenerator[tuple[Sequence[FollowedRow], int], None]:
        """What was missed, batch by batch; while one is handled the next is fetched."""
        after, upto, limit = wanted.after, wanted.upto, ROWS_PER_FETCH
        ahead: asyncio.Task[tuple[Sequence[FollowedRow], int]] | None = None
        try:
            while after < upto:
                rows, after = await (ahead or self._catch_up.fetch(stream, writer, after, upto, limit))
                ahead = None
                if after < upto:
                    ahead = asyncio.ensure_future(self._catch_up.fetch(stream, writer, after, upto, limit))
                yield rows, after
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait([ahead])

    # --- handing out ----------------------------------------------------------------------------------------------

    async def _hand_out_linear(self) -> None:
        """In the linear view: everything up to the linear position of each stream that moved, or could not be read before."""
        if self.options.view is View.WRITER:
            self._touched.clear()
        for stream in sorted(self._touched):
            view, linear = self._views[stream], self._cursors.linear(stream)
            while due := view.due(linear):
                async with aclosing(self._fetched(stream, None, due)) as batches:
                    async for rows, reached in batches:
                        self._pending += rows
                        await self._hand_out(partial(view.read, reached))
            self._pending += view.take(linear)
            self._touched.discard(stream)

    async def _hand_out(self, move: Callable[[], None] = lambda: None) -> None:
        """Hand out what is pending, then `move` the cursor behind it, then tell.

        So whoever stores facts and cursor when told stores what belongs together, and gets nothing twice.
        """
        if cache_feed.has_begun():  # values that these rows make old go before anybody sees the rows or the positions
            await asyncio.to_thread(cache_feed.before_advance)
        rows, self._pending = self._pending, []
        if rows and self._starts:
            rows = self._beyond_start(rows)
        if rows:
            await self._call_handler(rows)
        move()
        self._handled = self._cursors.positions()
        self._handled_linear = {stream: self._cursors.linear(stream) for stream in self._handled}
        self._handed_out = {stream: view.handed_out for stream, view in self._views.items()}
        self._progressed()
        if self._finishing:
            raise _Finished

    async def _call_handler(self, rows: Sequence[FollowedRow]) -> None:
        self._at_hand = rows
        try:
            outcome = self._handle(rows)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception as error:
            raise _HandlerFailed(error) from error
        finally:
            self._at_hand = ()

    def _beyond_start(self, rows: list[FollowedRow]) -> list[FollowedRow]:
        """A linear start at a vector token passes once more by facts of the writers that were ahead."""
        starts = self._starts
        for stream in [name for name, start in starts.items() if self.linear(name) > start.highest]:
            del starts[stream]  # far beyond the start by now
        highest = {stream: start.highest for stream, start in starts.items()}
        return [
            row
            for row in rows
            if row.token > highest.get(row.stream, 0) or not starts[row.stream].covers(row.instance, row.token)
        ]

    def queued(self) -> dict[str, int]:
        """Stream -> rows that were received and are not handled yet."""
        found = Counter(row.stream for rows in (self._pending, self._at_hand) for row in rows)
        found.update({stream: view.buffered_rows for stream, view in self._views.items() if view.buffered_rows})
        return dict(found)

    # --- where we are ---------------------------------------------------------------------------------------------

    def linear(self, stream: str) -> int:
        """Every fact of the stream up to here was handled; 0 for a stream that was not heard of."""
        in_order = self.options.view is View.LINEAR and stream in self._views
        return self._handed_out.get(stream, 0) if in_order else self._handled_linear.get(stream, 0)

    def positions(self) -> dict[str, dict[str, int]]:
        """Per stream and writer: up to where facts were handled."""
        if self.options.view is View.WRITER:
            return self._handled
        return {stream: dict.fromkeys(self._handled.get(stream, ()), at) for stream, at in self._handed_out.items()}
