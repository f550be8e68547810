"""Implements ``manage.py follow``: a follower that prints facts, registers itself, and may end at given tokens.

Output is written in a thread, so that a program which reads the output slowly does not delay our PING. If this program
closes the pipe, the command ends without an error.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from streams.conf import stream_settings
from streams.core.json_codec import encode_json
from streams.core.tokens import VectorToken
from streams.epochs import unstamp
from streams.errors import TokenError
from streams.replication.client.catch_up import CatchUp, NoCatchUp
from streams.replication.client.follower import Follower, FollowerOptions
from streams.replication.client.http_catch_up import HttpCatchUp, HttpServers
from streams.replication.client.links import Connector
from streams.replication.client.registration import Registration
from streams.replication.client.table_catch_up import TableCatchUp
from streams.replication.protocol.ordering import FollowedRow, View
from streams.replication.recording.follow import RecordedCatchUp, Recording
from streams.replication.recording.recorder import Recorder
from streams.runtime.logs import get_logger
from streams.runtime.text import safe_text

log = get_logger(__name__)

CATCH_UP_CHOICES = ("table", "http", "none")


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """The checked arguments of the command. Tokens are still texts, because the database may be needed to parse them.

    If ``http`` is given, missed facts are fetched from these servers. Otherwise they are fetched from our tables if
    ``uses_table`` is true. In all other cases they are not fetched.
    """

    connector: Connector
    name: str
    server_name: str
    streams: tuple[str, ...] | None = None
    start: Mapping[str, str] = field(default_factory=dict)
    until: Mapping[str, str] = field(default_factory=dict)
    view: View = View.WRITER
    uses_table: bool = True
    http: HttpServers | None = None
    secret: str = field(default="", repr=False)
    registers: bool = True
    record: str = ""
    json: bool = False


class Following:
    """One run of the command. ``output`` is the file descriptor to which rows are printed."""

    def __init__(self, request: FollowRequest, output: int) -> None:
        self._request = request
        self._output = output
        self._until: dict[str, VectorToken] = {}
        self._follower: Follower | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="output")
        self._output_is_closed = False
        self._recording: Recording | None = None
        self._recorded: Mapping[str, Mapping[str, int]] = {}

    async def run(self, timeout_seconds: float | None) -> bool:
        """Follows until every token of ``--until`` is reached, a signal arrives, the output is closed, or the time is over.

        Returns true if the tokens of ``--until`` are reached, or if the output was closed. Otherwise returns false, for
        instance after ``timeout_seconds``. Raises `TokenError` and `WrongRemote`.
        """
        catch_up, in_order = self._catch_up(), False
        try:
            catch_up = await self._record(catch_up)
            self._follower = await self._make_follower(catch_up)
            reached = await self._follow(self._follower, timeout_seconds)
            in_order = True
            return reached
        finally:
            if self._recording is not None:
                await self._recording.end(in_order=in_order)
            await catch_up.close()
            self._writer.shutdown(wait=True)

    async def _record(self, catch_up: CatchUp) -> CatchUp:
        """Opens the record of the foreign server, which is its stored rows and positions.

        Returns a catch-up that begins where the record ends.

        Returns ``catch_up`` itself if the command does not record.
        """
        request = self._request
        if not request.record:
            return catch_up
        using, where = stream_settings().database, str(request.connector)
        self._recording = Recording(Recorder(request.record, request.server_name, where, using), self._positions)
        self._recorded = await self._recording.open()
        return RecordedCatchUp(catch_up, self._recording, self._recorded)

    def _positions(self) -> Mapping[str, Mapping[str, int]]:
        return self._follower.positions() if self._follower is not None else {}

    def _catch_up(self) -> CatchUp:
        request = self._request
        if request.http is not None:
            return HttpCatchUp(request.http, request.secret, self._writers_of)
        if request.uses_table:
            return TableCatchUp(stream_settings().database, f"replsite follow {request.name}")
        return NoCatchUp()

    def _writers_of(self, stream: str) -> Collection[str]:
        return self._positions().get(stream, {})

    async def _make_follower(self, catch_up: CatchUp) -> Follower:
        request = self._request
        self._until = {stream: await _token(catch_up, stream, text) for stream, text in request.until.items()}
        options = FollowerOptions(
            address=None,
            name=request.name,
            server_name=request.server_name,
            streams=request.streams,
            start=await self._start(catch_up),
            view=request.view,
            connector=request.connector,
        )
        missed = self._recording.missed if self._recording is not None else _ignore
        return Follower(options, self._handle, catch_up, self._end_when_reached, missed)

    async def _start(self, catch_up: CatchUp) -> dict[str, VectorToken]:
        # A stream that has a record continues where the record ends.
        start = {stream: await _token(catch_up, stream, text) for stream, text in self._request.start.items()}
        for stream in start.keys() & self._recorded.keys():
            log.info("follower.goes_on_at_record", stream=stream, positions=self._recorded[stream])
            del start[stream]
        return start

    async def _follow(self, follower: Follower, timeout_seconds: float | None) -> bool:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, follower.finish)
        registration = Registration(follower) if self._request.registers else None
        try:
            async with asyncio.timeout(timeout_seconds):
                await follower.run()
        except TimeoutError:
            return False
        finally:
            if registration is not None:
                await registration.end()
        return self._output_is_closed or self._is_reached(follower)

    # --- output ---------------------------------------------------------------------------------------------------

    async def _handle(self, rows: Sequence[FollowedRow]) -> None:
        if self._recording is not None:
            await self._recording.store(rows)
        await self._print(rows)

    async def _print(self, rows: Sequence[FollowedRow]) -> None:
        form = _json_line if self._request.json else _plain_line
        text = b"".join(form(row) for row in rows if not self._is_beyond(row))
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, _write_all, self._output, text)
        except BrokenPipeError:
            self._output_is_closed = True
            if self._follower is not None:
                self._follower.finish()

    def _is_beyond(self, row: FollowedRow) -> bool:
        # Never in the order per writer: rows up to the token may come after a row above it.
        end = self._until.get(row.stream)
        return end is not None and self._request.view is View.LINEAR and row.token > end.highest

    # --- the end --------------------------------------------------------------------------------------------------

    def _end_when_reached(self) -> None:
        if self._until and self._follower is not None and self._is_reached(self._follower):
            self._follower.finish()

    def _is_reached(self, follower: Follower) -> bool:
        seen = follower.positions()
        return all(
            token.before_or_equal(VectorToken.of(follower.linear(stream), seen.get(stream, {})))
            for stream, token in self._until.items()
        )


def _ignore(event: object) -> None:
    """Does nothing, because the follower has logged the event."""


async def _token(catch_up: CatchUp, stream: str, text: str) -> VectorToken:
    # A vector token names writers by primary keys of our rows, and an epoch is of our database.
    plain, epoch = unstamp(text)
    if not isinstance(catch_up, TableCatchUp):
        if epoch:
            raise TokenError(
                f"{stream}={text}: only a follower that uses the database knows its epoch; leave @{epoch} out."
            )
        return VectorToken.parse(plain, {})
    if epoch:
        await catch_up.check_epoch(epoch, f"Token {text[:100]} of stream {stream}")
    if not plain.startswith("m"):
        return VectorToken.parse(plain, {})
    if not catch_up.covers(stream):
        raise TokenError(f"{stream}={text}: there is no stream {stream!r}.")
    return await catch_up.token(stream, plain)


def _json_line(row: FollowedRow) -> bytes:
    head = encode_json({"stream": row.stream, "instance": row.instance, "token": row.token})
    return b'%s,"row":%s}\n' % (head[:-1], encode_json(row.row))


def _plain_line(row: FollowedRow) -> bytes:
    # Names may have control characters, which a terminal would obey.
    names = f"{safe_text(row.stream, None)} {safe_text(row.instance, None)}"
    return b"%s %d %s\n" % (names.encode(), row.token, encode_json(row.row))


def _write_all(output: int, data: bytes) -> None:
    # No bytes stay in a buffer of Python. So if the pipe is closed, the error is raised here, and not at a later flush.
    view = memoryview(data)
    while view:
        view = view[os.write(output, view) :]
