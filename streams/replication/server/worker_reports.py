"""What workers say about themselves takes effect: who syncs, what was acknowledged, from where users came.

Taken on the event loop into a bounded buffer, written by a thread a moment later; the tables show it to every process.
Whoever syncs goes with the connection it was said on, and a connection without news for `worker_silence_seconds` is
forgotten, should its server have died. Counts of the wire are written along. Assumes a single event loop.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streams.db import driver
from streams.homeserver.federation_queue import free_acknowledged
from streams.replication.common import worker_sql
from streams.replication.common.command_counts import read_names
from streams.replication.common.write_behind import BackgroundWriter
from streams.replication.protocol.commands import Command
from streams.replication.protocol.report_buffer import ReportBuffer, Reports, Sync
from streams.replication.server.broadcaster import Broadcaster, process_broadcaster
from streams.replication.server.client import ReplicationClient
from streams.replication.server.relay import RELAYED, Relay
from streams.runtime.logs import get_logger

__all__ = ["WorkerReports", "process_reports"]

log = get_logger(__name__)
GAP_SECONDS = 0.1
#: Of what a client tells all others, and of what all clients tell: no client has more of that than is still free.
RELAYED_A_SECOND, ALL_RELAYED_A_SECOND = 1_000, 2_000
#: News of a connection, old rows and counts are not looked after more often than this.
NEWS_SECONDS, FORGET_SECONDS, COUNT_SECONDS = 30.0, 30.0, 2.0


@dataclass(slots=True)
class _Batch:
    """What one transaction writes."""

    reports: Reports
    connections: list[dict[str, Any]] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    forget: bool = False

    def __bool__(self) -> bool:
        return bool(self.reports or self.connections or self.counts or self.forget)


class WorkerReports:
    """The reports of all connections of one server, and the relay between them."""

    def __init__(self, broadcaster: Broadcaster, served_by: str = "") -> None:
        given = broadcaster.settings
        self.relay = Relay(broadcaster)
        #: Further counts of this process, kind -> name -> total.
        self.more_counts: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        self._settings = given
        self._broadcaster = broadcaster
        #: Ports and names may be the same on several hosts.
        self._served_by = f"{served_by or given.instance} on {socket.gethostname()}"
        self._buffer = ReportBuffer(given.worker_report_limit)
        self._peers: dict[str, ReplicationClient] = {}
        self._told: dict[str, float] = {}
        self._counted: Counter[tuple[str, str]] = Counter()
        self._count_due = self._forget_due = 0.0
        self._relay_second, self._relayed = -math.inf, 0
        self._connection = driver.KeptConnection(given.database, "replsite worker reports")
        self._flusher: BackgroundWriter[_Batch] | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Forget what an earlier life of this server left; raises when the database cannot be used."""
        await self.relay.start()
        self._flusher = BackgroundWriter(
            "worker-reports",
            self._collect,
            self._write,
            gap_seconds=GAP_SECONDS,
            idle_seconds=COUNT_SECONDS,
            close=self._connection.close,
        )
        await self._flusher.run(self._forget_earlier_life)
        self._flusher.start()

    async def stop(self) -> None:
        """Write what is left, and end."""
        for key in list(self._peers):
            self._buffer.gone(key)
        self._count_due = 0.0
        written = self._flusher.stop() if self._flusher is not None else asyncio.sleep(0)
        await asyncio.gather(self.relay.stop(), written)

    # --- what is said ---------------------------------------------------------------------------------------------

    def take(self, peer: ReplicationClient, commands: Sequence[Command]) -> None:
        """The commands of one piece of input; those that are neither told to everybody nor reports are ignored."""
        relayed = self._within_rate(peer, [command for command in commands if isinstance(command, RELAYED)])
        if relayed:
            self.relay.pass_on(relayed, peer)
        for command in commands:
            if self._buffer.take(peer.key, command):
                self._peers[peer.key] = peer
        if self._buffer.has_reports:
            self._wake()

    def drop(self, command: Command) -> None:
        """Count a report that does not count."""
        self._buffer.dropped[command.WORD] += 1

    def _within_rate(self, peer: ReplicationClient, commands: list[Command]) -> list[Command]:
        """What may be told to everybody, which costs as much as there are clients; the rest of a flood is dropped."""
        if not commands:
            return commands
        now = time.monotonic()
        if now >= peer.relay_second + 1.0:
            peer.relay_second, peer.relayed = now, 0
        if now >= self._relay_second + 1.0:
            self._relay_second, self._relayed = now, 0
        most = min(RELAYED_A_SECOND, ALL_RELAYED_A_SECOND - self._relayed)
        taken = commands[: max(most - peer.relayed, 0)]
        peer.relayed += len(taken)
        self._relayed += len(taken)
        self.relay.dropped.update(command.WORD for command in commands[len(taken) :])
        return taken

    def gone(self, peer: ReplicationClient) -> None:
        """The connection has ended."""
        if self._peers.pop(peer.key, None) is not None:
            self._told.pop(peer.key, None)
            self._buffer.gone(peer.key)
            self._wake()

    def figures(self) -> dict[str, int]:
        """Reports that were dropped, by command."""
        return dict(self._buffer.dropped + self.relay.dropped)

    def _wake(self) -> None:
        if self._flusher is not None:
            self._flusher.wake()

    # --- on the loop ----------------------------------------------------------------------------------------------

    def _collect(self) -> _Batch | None:
        now = time.monotonic()
        batch = _Batch(self._buffer.drain(), self._news(now), self._counts(now))
        if now >= self._forget_due:
            self._forget_due, batch.forget = now + FORGET_SECONDS, True
        return batch or None

    def _news(self, now: float) -> list[dict[str, Any]]:
        """Connections that the table does not know yet, or has not heard of for a while."""
        due = [key for key in self._buffer.connections() if now >= self._told.get(key, 0.0) + NEWS_SECONDS]
        rows = []
        for key in due:
            peer = self._peers[key]
            self._told[key] = now
            age = max(now - peer.connection.last_command_at, 0.0)
            name = (peer.name or peer.address)[:200].replace("\0", "\ufffd")
            rows.append({"key": key, "name": name, "address": peer.address, "age": age})
        return rows

    def _counts(self, now: float) -> list[dict[str, Any]]:
        """What was counted since the last time."""
        if now < self._count_due:
            return []
        self._count_due = now + COUNT_SECONDS
        broadcaster = self._broadcaster
        broadcaster.count_sent()
        kinds = {
            "closed": broadcaster.closed,
            "received": broadcaster.counts.received,
            "sent": broadcaster.counts.sent,
            "updates": broadcaster.updates_sent,
            "dropped": self.figures(),
        }
        totals = Counter(
            {
                (kind, name): total
                for source in (kinds, self.more_counts())
                for kind, names in source.items()
                for name, total in names.items()
            }
        )
        fresh = totals - self._counted
        self._counted = totals
        return [{"kind": kind, "name": name, "total": total} for (kind, name), total in fresh.items()]

    # --- in the thread --------------------------------------------------------------------------------------------

    def _forget_earlier_life(self) -> None:
        with self._connection.cursor() as cursor:
            worker_sql.forget_server(cursor, self._served_by)
            self._broadcaster.counts.know(read_names(cursor))

    def _write(self, batch: _Batch) -> None:
        with self._connection.cursor() as cursor:
            with driver.in_transaction(cursor):
                self._write_all(cursor, batch)
            if batch.reports.acknowledged:
                free_acknowledged(cursor)

    def _write_all(self, cursor: Any, batch: _Batch) -> None:
        reports, given = batch.reports, self._settings
        worker_sql.forget_connections(cursor, sorted(reports.gone))
        worker_sql.forget_workers(cursor, sorted(reports.cleared))
        worker_sql.store_connections(cursor, batch.connections, self._served_by)
        worker_sql.take_over(cursor, reports.taken_over)
        worker_sql.end_syncs(cursor, [_row(sync) for sync in reports.ends])
        worker_sql.store_syncs(cursor, [_row(sync) | {"ms": ms} for sync, ms in reports.starts.items()])
        worker_sql.store_acknowledgements(cursor, reports.acknowledged)
        worker_sql.store_addresses(cursor, _address_rows(reports))
        worker_sql.add_counts(cursor, batch.counts)
        if batch.forget:
            worker_sql.forget_old(cursor, given.worker_silence_seconds, given.user_address_days * 86_400)


def _row(sync: Sync) -> dict[str, Any]:
    return sync._asdict()


def _address_rows(reports: Reports) -> list[dict[str, Any]]:
    return [
        {"user": user, "digest": digest, "ip": ip, "device": device, "agent": agent, "ms": ms}
        for (user, digest, ip), (device, agent, ms) in reports.addresses.items()
    ]


_of_process: WorkerReports | None = None


def process_reports(served_by: str = "") -> WorkerReports:
    """The reports of this process's broadcaster; made at the first call, started by whoever serves."""
    global _of_process  # noqa: PLW0603 - one per process by its nature
    if _of_process is None:
        _of_process = WorkerReports(process_broadcaster(served_by), served_by)
    return _of_process
