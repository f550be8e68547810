"""A follower: connects, reconnects after every loss, fetches missed facts, and hands facts to a handler.

The caller chooses the delivery order. Each fact is delivered once per `Follower`, and the facts of one writer are
always delivered in order. If a connection is lost, no fact is lost or repeated. The socket is not read while the
handler works, so buffers stay bounded. A server may close a connection that is read too slowly. The follower then
fetches the facts that it missed. Assumes a single event loop. This module only moves bytes and facts.
``protocol.cursors`` and ``protocol.ordering`` decide which facts are missing and which may be delivered.
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
from streams.reading.watcher import watcher_of
from streams.replication.client.catch_up import CatchUp, NoCatchUp, Writers
from streams.replication.client.links import Connector, Counters, Link, TcpConnector
from streams.replication.common.command_counts import received_rdata
from streams.replication.common.command_hooks import dispatch
from streams.replication.errors import BadAddress, CatchUpError, WrongRemote
from streams.replication.protocol.client_state import ClientState
from streams.replication.protocol.commands import ID_LIMIT, Command, Error, Position, RData, Server, overlong
from streams.replication.protocol.connection import CloseReason, Limits
from streams.replication.protocol.cursors import Cursors, Event, Fact, MissingRange, Moved, Reset
from streams.replication.protocol.ordering import FollowedRow, LinearView, Range, View
from streams.replication.protocol.reconnect import Backoff, Outcome
from streams.replication.transport.addresses import Address
from streams.runtime.logs import Condition, LineBound, get_logger
from streams.runtime.text import OTHER, safe_text

__all__ = ["Follower", "FollowerOptions", "Handler"]

log = get_logger(__name__)

Handler = Callable[[Sequence[FollowedRow]], Awaitable[None] | None]

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 1.0
ROWS_PER_FETCH = 10_000
#: The most log lines about ignored commands and errors of the server within ``IGNORED_SECONDS``.
IGNORED_LINES, IGNORED_SECONDS = 10, 60.0


@dataclass(frozen=True, slots=True)
class FollowerOptions:
    """The options of a follower: the server, the follower's name, the start tokens, and the delivery order.

    If ``server_name`` is None, any server is accepted. If ``streams`` is None, all streams are followed. ``start`` has
    a token per stream; other streams start at their present positions. ``own_instance`` is the name under which this
    process writes: facts of this writer are ignored. If ``connector`` is given, the follower connects with it instead
    of plain TCP to ``address``. ``speaker`` reports this process's state to the server. If ``connector`` and
    ``speaker`` are given, the connector must send the commands of ``speaker.greeting`` on each new connection.
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
    speaker: ClientState | None = None

    def way(self) -> Connector:
        """Returns the connector to the server. Raises `BadAddress` if neither an address nor a connector is given."""
        if self.connector is not None:
            return self.connector
        if self.address is None:
            raise BadAddress("A follower needs an address or a connector: say whom to follow.")
        greeting = self.speaker.greeting if self.speaker is not None else tuple
        return TcpConnector(
            self.address, self.name, self.server_name, self.limits, greeting=greeting, streams=self.streams or ()
        )


class _Finished(Exception):
    """The exception by which the follower's loops end after `Follower.finish`."""


class _HandlerFailed(Exception):
    """A wrapper for an error of the handler, so that the follower does not take the error for a lost connection."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Follower:
    """The follower of one server. It calls ``handle``, which may be async, with rows of whole facts in delivery order.

    ``progressed`` is called after facts were handled or positions moved. It may call `finish`. ``missed`` is called
    with each range that the catch-up does not cover, and with a `Reset` for each stream that started again.
    """

    def __init__(
        self,
        options: FollowerOptions,
        handle: Handler,
        catch_up: CatchUp | None = None,
        progressed: Callable[[], None] = lambda: None,
        missed: Callable[[MissingRange | Reset], None] = lambda event: None,
    ) -> None:
        self.options = options
        self.connects = self.facts_missed_ranges = 0
        self.connector = options.way()
        self.link: Link | None = None
        self._lines = LineBound(IGNORED_LINES, IGNORED_SECONDS)
        self._not_connected = Condition(
            log,
            "follower.connection_failed",
            "follower.connected_again",
            "follower.still_not_connected",
            server=str(self.connector),
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
        self._given_out: dict[str, int] = {}
        """The highest possible token of each stream, as far as it is known from the catch-up."""
        self._has_learned = False
        self._outcome = Outcome.UNREACHABLE
        self._finishing = False
        self._task: asyncio.Task[None] | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the server until `finish` is called.

        Raises `WrongRemote`, `TooManyWriters`, ``EpochChanged``, and the exceptions of the handler.
        """
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
        """Makes `run` return soon without an error. Facts that were passed to the handler before count as handled."""
        self._finishing = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _start(self) -> None:
        # Before the follower connects: so every fact that becomes complete later is delivered.
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
            self._outcome, started = Outcome.UNREACHABLE, time.monotonic()
            trouble: BaseException | str = "the server closed the connection before it sent a position"
            try:
                await self._follow_one_connection()
            except (OSError, CatchUpError) as error:
                trouble = error
            retry_seconds = backoff.seconds_after(self._outcome, time.monotonic() - started)
            if isinstance(trouble, BaseException) or self._outcome is Outcome.USELESS:
                self._not_connected.begins(trouble, next_try_seconds=retry_seconds)
            await asyncio.sleep(retry_seconds)

    # --- one connection -------------------------------------------------------------------------------------------

    async def _follow_one_connection(self) -> None:
        # OSError and CatchUpError end the connection, not the follower: `_reconnect_for_ever` starts the next one.
        link = self.link = await self.connector.connect()
        self.connects += 1
        self._outcome = Outcome.USELESS
        self._cursors.begin_connection()
        self._has_learned = False
        speaker = self.options.speaker
        if speaker is not None:
            speaker.attach(link.send)
        try:
            while commands := await link.receive():
                await self._apply(commands)
        finally:
            if speaker is not None:
                speaker.attach(None)
                for command in speaker.farewell() if self._finishing else ():
                    link.send(command)
            await link.close(CloseReason.STOPPING if self._finishing else CloseReason.SERVER_LOST)

    def _can_reset(self, stream: str) -> bool:
        return self.connector.can_reset(stream) and self._catch_up.can_reset(stream)

    def counters(self) -> Counters:
        """Returns the counters of the present connection. While there is no connection, returns those of the last connection."""
        return self.link.counters if self.link is not None else Counters()

    # --- commands -------------------------------------------------------------------------------------------------

    async def _apply(self, commands: Sequence[Command]) -> None:
        for stream, number in Counter(command.stream for command in commands if type(command) is RData).items():
            received_rdata.add(stream if stream in self._streams else OTHER, number)
        await self._check_tokens(commands)
        for command in commands:
            match command:
                case RData():
                    await self._follow_event(self._cursors.apply(command))
                case Position():
                    await self._apply_position(command)
                case Server(name):
                    self._check_server(name)
                case Error(text):
                    if self._lines.has_room():
                        log.warning("follower.server_error", server=str(self.connector), text=safe_text(text, 500))
                case _:
                    self._cursors.end_run()
                    self._dispatch(command)
        self._touched |= self._cursors.settled()
        await self._hand_out_linear()
        await self._hand_out()

    def _dispatch(self, command: Command) -> None:
        if not (found := overlong(command)):
            dispatch(command)
        elif self._lines.has_room():
            log.warning("follower.command_ignored", server=str(self.connector), error=found)

    async def _check_tokens(self, commands: Iterable[Command]) -> None:
        # A token that the sequence did not give out would move the cursor too far: the follower would skip later facts.
        wanted, ours = self.options.streams, self.options.own_instance
        named: dict[str, int] = {}
        for command in commands:
            if not isinstance(command, RData | Position) or command.instance == ours:
                continue
            if (wanted is None or command.stream in wanted) and self._catch_up.covers(command.stream):
                token = command.new if isinstance(command, Position) else command.token or 0
                named[command.stream] = max(token, named.get(command.stream, 0))
        if unsure := {stream for stream, token in named.items() if token > self._given_out.get(stream, 0)}:
            self._given_out.update(await self._catch_up.given_out(unsure))
        for stream in unsure:
            if named[stream] > self._given_out.get(stream, named[stream]):
                raise ConnectionError(
                    f"the server names {named[stream]} of stream {stream}, but the sequence has given out "
                    f"{self._given_out[stream]} only: it is a server of another database, or the sequence was set back"
                )

    def _check_server(self, name: str) -> None:
        wanted = self.options.server_name
        if wanted is not None and name != wanted:
            name = name[:ID_LIMIT]
            raise WrongRemote(
                f"The server at {self.connector} calls itself {name!r}, not {wanted!r}. Correct the address, or follow "
                f"that server by its name: --server-name {safe_text(name, None)}."
            )

    async def _apply_position(self, command: Position) -> None:
        self._outcome = Outcome.USED
        self._not_connected.ends()
        if not self._has_learned:
            await self._learn()
        event = self._cursors.apply(command)
        if self._cursors.is_starting(command.stream):
            self._views[command.stream] = LinearView(self._cursors.linear(command.stream))
        await self._follow_event(event)

    async def _follow_event(self, event: Event | None) -> None:
        if isinstance(event, MissingRange):
            await self._fill(event)
        elif isinstance(event, Reset):
            await self._restart_stream(event)
        else:
            self._record(event)

    async def _restart_stream(self, event: Reset) -> None:
        # The facts of the former generation that were received are delivered first.
        upto = event.token if self._catch_up.covers(event.stream) else 0
        # Example: the stream started again, and its writer is at 8 now. The cursor moved to 8 when the command came,
        # but facts 1 to 8 were not fetched. Delivering the old rows below reports the cursors as handled. So the writer
        # goes to 0 first.
        if upto:
            self._cursors.rewind(event.stream, event.instance)
            event = Reset(event.stream, event.instance, 0)
        if event.stream in self._views:
            self._pending += self._views[event.stream].leave()
        await self._hand_out()
        self._missed(event)
        self._record(event)
        if upto:
            await self._fill(MissingRange(event.stream, event.instance, 0, upto))

    async def _learn(self) -> None:
        # Once per connection, after the server has sent its first POSITION.
        self._has_learned = True
        # Called at the first POSITION of the connection, so the writers are read after the server took its snapshot. A
        # writer that joined in between is found here. All facts of a writer that joins later lie above the linear
        # position.
        for stream, writers in (await self._catch_up.writers(self.options.streams)).items():
            if self._cursors.knows(stream):
                self._cursors.learn(stream, writers.positions)
            else:
                self._start_stream(stream, writers)

    def _record(self, event: Event | None) -> None:
        match event:
            case Fact(stream, instance, token, rows):
                self._receive(FollowedRow(stream, instance, token, row) for row in rows)
                self._touched.add(stream)
            case Moved(stream):
                self._touched.add(stream)
            case Reset(stream, instance, token):
                log.info("follower.stream_reset", stream=stream, writer=instance, token=token)
                self._starts.pop(stream, None)  # a token of the former generation; its numbers are used again
                self._views[stream] = LinearView(self._cursors.linear(stream))
                self._touched.add(stream)

    def _receive(self, rows: Iterable[FollowedRow]) -> None:
        if self.options.view is View.WRITER:
            self._pending += rows
        else:
            fact = list(rows)
            self._views[fact[0].stream].add(fact)

    async def _fill(self, gap: MissingRange) -> None:
        """Fetches and delivers the range ``gap``, in which facts of one writer may be missing.

        In linear order, only marks the range as missing, and `_hand_out_linear` fetches its facts later. If the
        catch-up does not cover the stream, logs the range and passes it to ``missed``.
        """
        self._touched.add(gap.stream)
        if not self._catch_up.covers(gap.stream):
            self.facts_missed_ranges += 1
            log.warning("follower.facts_missed", stream=gap.stream, writer=gap.instance, after=gap.after, upto=gap.upto)
            self._missed(gap)
        elif self.options.view is View.LINEAR:
            # The range is read later, when the linear position has passed the gap. Then the table gives the facts of all
            # writers in order.
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
        """Fetches the facts of the range ``wanted`` in batches. Yields (rows, position up to which facts were fetched).

        If ``writer`` is None, fetches the facts of all writers. While the caller handles a batch, the next batch is
        fetched.
        """
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

    # --- delivery -------------------------------------------------------------------------------------------------

    async def _hand_out_linear(self) -> None:
        """Delivers all facts up to the linear position. Delivers nothing if the order is per writer.

        Omits a stream if its positions have not moved since the last call, unless the last call failed to fetch its
        facts.
        """
        if self.options.view is View.WRITER:
            self._touched.clear()
        for stream in sorted(self._touched):
            view, linear = self._views[stream], self._cursors.linear(stream)
            while due := view.due(linear):
                async with aclosing(self._fetched(stream, None, due)) as batches:
                    async for rows, reached in batches:
                        self._pending += rows
                        await self._hand_out(partial(view.read, reached))
            self._pending += view.pop(linear)
            self._touched.discard(stream)  # last, so that after a failed fetch the next call handles the stream again

    async def _hand_out(self, move: Callable[[], None] = lambda: None) -> None:
        # ``move`` moves the cursor beyond the pending rows. So ``progressed`` may store the handled facts and the
        # cursor in one transaction, and no fact is delivered twice.
        # Cached values that these rows make stale are dropped first. Otherwise the handler, or a caller that sees the new
        # position, could still read a stale value.
        if (watcher := watcher_of()) is not None:
            await asyncio.to_thread(watcher.catch_up)
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
        # In linear order, the follower reads from the base of the start token. So it reads facts that the token covers:
        # those of writers whose entries in the token are above its base.
        starts = self._starts
        for stream in [name for name, start in starts.items() if self.linear(name) > start.highest]:
            del starts[stream]  # all facts still to come lie above the start
        highest = {stream: start.highest for stream, start in starts.items()}
        return [
            row
            for row in rows
            if row.token > highest.get(row.stream, 0) or not starts[row.stream].covers(row.instance, row.token)
        ]

    def queued(self) -> dict[str, int]:
        """Returns ``{stream: number of rows that were received and are not handled yet}``."""
        found = Counter(row.stream for rows in (self._pending, self._at_hand) for row in rows)
        found.update({stream: view.buffered_rows for stream, view in self._views.items() if view.buffered_rows})
        return dict(found)

    # --- positions ------------------------------------------------------------------------------------------------

    def linear(self, stream: str) -> int:
        """Returns the linear position up to which all facts of the stream were handled, or 0 for an unknown stream."""
        in_order = self.options.view is View.LINEAR and stream in self._views
        return self._handed_out.get(stream, 0) if in_order else self._handled_linear.get(stream, 0)

    def positions(self) -> dict[str, dict[str, int]]:
        """Returns the positions up to which facts were handled, as ``{stream: {writer: position}}``."""
        if self.options.view is View.WRITER:
            return self._handled
        return {stream: dict.fromkeys(self._handled.get(stream, ()), at) for stream, at in self._handed_out.items()}
