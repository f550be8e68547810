"""Stores what workers report: users that sync, federation acknowledgements, and users' addresses.

Reports are taken on the event loop into a bounded buffer, and a thread writes them to tables a moment later. Every
process can read these tables. A syncing user belongs to the connection that reported the user, and is removed with this
connection. A connection without a command for `worker_silence_seconds` is removed from the tables, in case its server
has died. Counts of sent and received commands are written in the same transactions. Assumes a single event loop.
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
#: Most commands that are relayed in a second: those of one client, and those of all clients together. One client gets
#: at most what the others have left of the second number.
RELAYED_A_SECOND, ALL_RELAYED_A_SECOND = 1_000, 2_000
#: Least time between two writes of a connection's row, between two deletions of old rows, and between two writes of
#: counts.
NEWS_SECONDS, FORGET_SECONDS, COUNT_SECONDS = 30.0, 30.0, 2.0


@dataclass(slots=True)
class _Batch:
    """The reports, rows and counts that one transaction writes. ``forget`` is true if it also deletes old rows."""

    reports: Reports
    connections: list[dict[str, Any]] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    forget: bool = False

    def __bool__(self) -> bool:
        return bool(self.reports or self.connections or self.counts or self.forget)


class WorkerReports:
    """The worker reports of all connections of one server, and the relay between the connections."""

    def __init__(self, broadcaster: Broadcaster, served_by: str = "") -> None:
        given = broadcaster.settings
        self.relay = Relay(broadcaster)
        #: Returns further counts of this process, kind -> name -> total.
        self.more_counts: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        self._settings = given
        self._broadcaster = broadcaster
        #: Includes the host's name, because instance names and ports may be the same on several hosts.
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
        """Deletes the rows that a former process of this server left, and starts to write.

        Raises the driver's errors if the database cannot be used.
        """
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
        """Writes the remaining reports, and ends."""
        for key in list(self._peers):
            self._buffer.gone(key)
        self._count_due = 0.0
        written = self._flusher.stop() if self._flusher is not None else asyncio.sleep(0)
        await asyncio.gather(self.relay.stop(), written)

    # --- input ----------------------------------------------------------------------------------------------------

    def take(self, peer: ReplicationClient, commands: Sequence[Command]) -> None:
        """Relays or buffers the commands of one piece of input. Ignores all other commands."""
        relayed = self._within_rate(peer, [command for command in commands if isinstance(command, RELAYED)])
        if relayed:
            self.relay.pass_on(relayed, peer)
        for command in commands:
            if self._buffer.take(peer.key, command):
                self._peers[peer.key] = peer
        if self._buffer.has_reports:
            self._wake()

    def drop(self, command: Command) -> None:
        """Counts a report as dropped."""
        self._buffer.dropped[command.WORD] += 1

    def _within_rate(self, peer: ReplicationClient, commands: list[Command]) -> list[Command]:
        """Returns the commands that may be relayed now. Drops and counts the commands above the limits per second.

        The limits exist because a relayed command is written to every client.
        """
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
        """Records that a connection has ended, so that the users it reported are deleted."""
        if self._peers.pop(peer.key, None) is not None:
            self._told.pop(peer.key, None)
            self._buffer.gone(peer.key)
            self._wake()

    def figures(self) -> dict[str, int]:
        """Returns the number of dropped reports by command."""
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
        """Returns a row for each worker connection whose row was not written within the last ``NEWS_SECONDS``."""
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
        """Returns by how much each count grew since this method last returned counts.

        Returns nothing if that was less than ``COUNT_SECONDS`` ago.
        """
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
    """Returns the worker reports of this process's broadcaster, and creates them at the first call.

    Does not start them.
    """
    global _of_process  # noqa: PLW0603 - one per process by its nature
    if _of_process is None:
        _of_process = WorkerReports(process_broadcaster(served_by), served_by)
    return _of_process
