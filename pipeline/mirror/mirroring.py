"""Keeps the rooms of a running Synapse here: fills them by an import, then follows the server. Needs Django.

    stored positions of the server    what is complete now                        (pipeline.mirror.source)
    import                            all rooms, from a later snapshot            (pipeline.importing.job)
    follow                            announced positions: nothing below is open  (streams.replication.client)
    read and store                    events up to them, in one transaction       (pipeline.mirror.store)

The first two overlap, so no event is missed between the import and the first batch. What the server sends only wakes this
process, and tells how far it may read. So it does not matter which lines were lost: the next position covers them.

The positions of all streams of the server are recorded under the mirror's name, for the live page.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO, TypeVar

from django.db import Error as DjangoError
from django.db import connections
from django.db.models import Max
from django.utils import timezone

from pipeline.errors import MirrorElsewhere, SourceAway, UnusableSource
from pipeline.mirror.source import BACKFILL, EVENTS, SynapseSource
from pipeline.mirror.store import OTHERS, MirrorStore
from pipeline.models import Job, JobState, MirroredServer
from streams.conf import stream_settings
from streams.db import driver
from streams.replication.client.catch_up import CatchUp
from streams.replication.client.follower import Follower, FollowerOptions
from streams.replication.client.links import Connector, Counters, Link, TcpLink
from streams.replication.client.registration import Registration
from streams.replication.protocol.commands import Command
from streams.replication.protocol.connection import CloseReason
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.recording.follow import Recording
from streams.replication.recording.recorder import Recorder
from streams.runtime.logs import Condition, get_logger
from streams.runtime.masking import masked
from streams.writing.name import written_by

__all__ = ["MirrorRequest", "mirror"]

log = get_logger(__name__)
T = TypeVar("T")
#: Lines are received, and events stored, at most once in this time. Half of it is the usual delay of an event. Each time has a
#: fixed price, for the lines as for the events.
PACE_SECONDS = 0.5
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.2, 5.0
#: Positions that moved without events are stored after this time, and states are asked for that were incomplete.
POSITIONS_SECONDS = 30.0
_AWAY = (SourceAway, DjangoError, driver.DatabaseError)


@dataclass(frozen=True, slots=True)
class MirrorRequest:
    """The checked arguments. With ``once`` the mirror ends when it has reached the positions that the server first names."""

    source: str = field(repr=False)
    address: str
    connector: Connector
    name: str
    server_name: str
    master: str | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a run. ``filled`` has those of the import, or is None if the rooms were filled before."""

    filled: Mapping[str, Any] | None
    events: int
    rejected: int
    refused: int
    left_out: int
    positions: Mapping[str, Mapping[str, int]]

    def summary(self) -> dict[str, Any]:
        return {
            "filled": self.filled,
            "events": self.events,
            "rejected": self.rejected,
            "refused": self.refused,
            "left_out": self.left_out,
            "positions": self.positions,
        }


def mirror(request: MirrorRequest, ready: Callable[[str], None], progress: TextIO) -> Outcome:
    """Fills the rooms if they are not filled yet, and follows the server until SIGINT or SIGTERM.

    ``ready`` is called with a line when the rooms are those of the server for the first time. Raises ``UnusableSource``,
    ``MirrorElsewhere``, ``RecorderBusy``, ``WrongRemote``, the errors of an import, and those of ``MirrorStore.advance``.
    """
    using = stream_settings().database
    source = SynapseSource(request.source)
    recorder = Recorder(request.name, request.server_name, str(request.connector), using, _command(request, source))
    try:
        try:
            source.check()
        except SourceAway as error:
            raise UnusableSource(str(error)) from error
        recorder.open()  # the lock on the name, before anything is filled
        server = _server(request, source, using)
        filled = None if server.filled_at else _fill(request, server, using, progress)
        with written_by("mirror"):
            store = MirrorStore(server, source, using)
            asyncio.run(_Mirroring(request, store, source, recorder, using, ready).run())
    finally:
        source.close()
        recorder.close(in_order=False)  # an end in order is stored by then
    total = store.total
    return Outcome(filled, total.events, total.rejected, total.refused, total.left_out, store.positions)


def _command(request: MirrorRequest, source: SynapseSource) -> str:
    """Returns the words after ``manage.py`` that go on with this mirror, without a password."""
    named = ["--name", request.name, "--server-name", request.server_name]
    return shlex.join(["mirror", source.name, masked(request.address), *named])


# --- the first filling --------------------------------------------------------------------------------------------------


def _server(request: MirrorRequest, source: SynapseSource, using: str) -> MirroredServer:
    rows = MirroredServer.objects.using(using)
    server = rows.filter(name=request.name).first()
    if server is None:
        # Before the import takes its snapshot. In the other order, A is open with event 5 when the snapshot is taken, B
        # commits 6, A commits, and the position 6 is read: nobody would read 5.
        positions = source.stored_positions()
        for known in positions.values():
            known[OTHERS] = min(known.values(), default=0)
        last = Job.objects.using(using).aggregate(last=Max("pk"))["last"] or 0
        server = MirroredServer(
            name=request.name,
            server_name=request.server_name,
            source=source.name,
            positions=positions,
            jobs_before=last,
        )
    elif server.server_name != request.server_name:
        raise MirrorElsewhere(
            f"{request.name!r} is the mirror of {server.server_name}, not of {request.server_name}: give another --name."
        )
    server.source, server.address = source.name, masked(request.address)
    server.save(using=using)
    return server


def _fill(request: MirrorRequest, server: MirroredServer, using: str, progress: TextIO) -> Mapping[str, Any]:
    from pipeline.importing.job import KIND, ImportOptions, import_history  # noqa: PLC0415 - needs pyspark

    # Only an import that began behind the stored positions covers what is below them. A job of before has read less.
    jobs = Job.objects.using(using).filter(kind=KIND, pk__gt=server.jobs_before, arguments__sources=[server.source])
    job = jobs.filter(state=JobState.DONE).first()  # this process was killed right after it
    if job is None:
        resume = jobs.filter(state__in=[JobState.FAILED, JobState.RUNNING]).exists()
        options = ImportOptions([request.source], resume=resume, master=request.master, as_stored=True)
        job = Job.objects.using(using).get(pk=import_history(options, progress).job)
    server.import_job, server.filled_at = job.pk, timezone.now()
    server.save(using=using, update_fields=["import_job", "filled_at"])
    return dict(job.summary or {})


# --- live ---------------------------------------------------------------------------------------------------------------


class _Mirroring:
    def __init__(
        self,
        request: MirrorRequest,
        store: MirrorStore,
        source: SynapseSource,
        recorder: Recorder,
        using: str,
        ready: Callable[[str], None],
    ) -> None:
        self._request, self._store, self._source, self._using, self._ready = request, store, source, using, ready
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mirror")
        self._recording = Recording(recorder, self._positions)
        options = FollowerOptions(None, request.name, request.server_name, connector=_PacedConnector(request.connector))
        self._follower = Follower(options, _ignore, _DatabaseCatchUp(), self._progressed, self._recording.missed)
        self._announced: Mapping[str, Mapping[str, int]] = {}
        self._wake = asyncio.Event()
        self._is_ready = False
        self._away = Condition(
            log, "mirror.database_away", "mirror.database_back", "mirror.database_still_away", mirror=request.name
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._follower.finish)
        await self._recording.open()
        registration = Registration(self._follower, self._stored_here)
        storing = loop.create_task(self._store_for_ever(), name="mirror")
        storing.add_done_callback(lambda _: self._follower.finish())
        in_order = False
        try:
            await self._follower.run()
            in_order = True
        finally:
            storing.cancel()
            with suppress(asyncio.CancelledError):
                await storing
            await self._in_thread(self._end)
            self._thread.shutdown(wait=True)
            await registration.end()
            await self._recording.end(in_order=in_order)

    def _end(self) -> None:
        with suppress(*_AWAY):  # they are read again, and found empty
            self._store.store_positions()
        self._close_connection()

    def _close_connection(self) -> None:
        connections[self._using].close()  # that of the thread in which this runs

    def _positions(self) -> Mapping[str, Mapping[str, int]]:
        return self._follower.positions()

    def _stored_here(self) -> Mapping[str, Mapping[str, int]]:
        """Returns how far each announced writer's events are here, by the names of the recorded streams."""
        return {
            f"{self._request.name}/{stream}": {writer: self._store.position_of(stream, writer) for writer in known}
            for stream, known in self._announced.items()
        }

    def _progressed(self) -> None:
        positions = self._positions()
        self._announced = {stream: positions[stream] for stream in (EVENTS, BACKFILL) if stream in positions}
        if self._store.is_behind(self._announced) or (not self._is_ready and len(self._announced) == 2):
            self._wake.set()

    async def _store_for_ever(self) -> None:
        stored_at = time.monotonic()
        await self._try(self._store.give_all_states)
        while not (self._is_ready and self._request.once):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), POSITIONS_SECONDS)
            self._wake.clear()
            started, announced = time.monotonic(), self._announced
            more = await self._try(partial(self._store.advance, announced))
            if not more and not self._is_ready and len(announced) == 2:
                self._is_ready = True
                self._ready(f"ready mirror={self._request.name}")
            if started - stored_at >= POSITIONS_SECONDS:
                await self._try(self._store.store_positions)
                await self._try(self._store.give_waiting_states)
                stored_at = started
            if more:
                self._wake.set()

    async def _try(self, work: Callable[[], T]) -> T:
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            try:
                done = await self._in_thread(work)
            except _AWAY as error:
                why = str(error) if isinstance(error, SourceAway) else driver.explain(error)
                self._away.begins(why, next_try_seconds=retry_seconds)
                await self._in_thread(self._close_connection)
                await asyncio.sleep(retry_seconds)
                retry_seconds = min(2 * retry_seconds, LONGEST_RETRY_SECONDS)
            else:
                self._away.ends()
                return done

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # To its end, because a thread cannot be cancelled: it would commit after this process has closed its connections.
        task = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise


class _PacedConnector:
    """A connector whose links give commands at most once in ``PACE_SECONDS``. The first ones after a rest come at once."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def __str__(self) -> str:
        return str(self._connector)

    def can_reset(self, stream: str) -> bool:
        return self._connector.can_reset(stream)

    async def connect(self) -> Link:
        return _PacedLink(await self._connector.connect())


class _PacedLink:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._next = 0.0

    @property
    def counters(self) -> Counters:
        return self._link.counters

    async def receive(self) -> Sequence[Command]:
        await asyncio.sleep(max(0.0, self._next - time.monotonic()))
        commands = await self._link.receive()
        self._next = time.monotonic() + PACE_SECONDS
        if isinstance(self._link, TcpLink):
            self._link.pause()
        return commands

    def send(self, command: Command) -> None:
        self._link.send(command)

    async def close(self, reason: CloseReason) -> None:
        await self._link.close(reason)


class _DatabaseCatchUp(CatchUp):
    """A catch-up that fetches nothing, because the events are read from the server's database anyway.

    Of the other streams only the positions count here.
    """

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        return (), upto


def _ignore(rows: Sequence[FollowedRow]) -> None:
    """Does nothing with the rows: ``progressed`` sees the positions."""
