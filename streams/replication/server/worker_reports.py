"""Stores what workers report: users that sync, federation acknowledgements, and users' addresses.

Reports are put into a bounded buffer on the event loop, and a thread writes them to tables a moment later. Every
process can read these tables. A syncing user belongs to the connection over which the user was reported, and is removed
with this connection. A connection without a command for `worker_silence_seconds` is removed from the tables, in case
its server has died. Counts of sent and received commands are written in the same transactions. Assumes a single event
loop.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streams.core.lookup import find
from streams.core.names import name_without_number
from streams.db import driver
from streams.replication.common import worker_sql
from streams.replication.common.command_counts import read_names
from streams.replication.common.write_behind import BackgroundWriter
from streams.replication.protocol.commands import ClearUserSync, Command, UserIP, UserSync
from streams.replication.protocol.report_buffer import ReportBuffer, Reports
from streams.replication.protocol.rights import EVERYTHING
from streams.replication.server.broadcaster import Broadcaster, process_broadcaster
from streams.replication.server.client import ReplicationClient
from streams.replication.server.relay import RELAYED, Relay
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)
_FULL = "REPLSITE_USER_ADDRESS_LIMIT addresses of users are stored. New ones are dropped until older ones are deleted"
GAP_SECONDS = 0.1
#: Least time between two writes of a connection's row, between two deletions of old rows, and between two writes of
#: counts.
NEWS_SECONDS, FORGET_SECONDS, COUNT_SECONDS = 30.0, 30.0, 2.0


@dataclass(slots=True)
class _Batch:
    """The reports, rows of connections, and counts that one transaction writes.

    If ``forget`` is true, the transaction also deletes old rows.
    """

    reports: Reports
    connections: list[dict[str, Any]] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    forget: bool = False

    def __bool__(self) -> bool:
        return bool(self.reports or self.connections or self.counts or self.forget)


class WorkerReports:
    """The worker reports of all connections of one server. It also passes commands to the relay."""

    def __init__(self, broadcaster: Broadcaster, served_by: str = "") -> None:
        given = broadcaster.settings
        self.relay = Relay(broadcaster)
        #: A function that returns further counts of this process, as ``{kind: {name: total}}``.
        self.more_counts: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        self._settings = given
        self._broadcaster = broadcaster
        #: Includes the host's name, because instance names and ports may be the same on several hosts.
        self._served_by = f"{served_by or name_without_number(given.writer)} on {socket.gethostname()}"
        self._buffer = ReportBuffer(given.worker_report_limit)
        #: Written only by the thread that writes to the database. ``_room`` is the number of further addresses that may be
        #: stored, as of the last count.
        self._room = self._addresses_dropped = 0
        self._full = Condition(log, "workers.addresses_full", "workers.addresses_have_room")
        self._clients: dict[str, ReplicationClient] = {}
        self._stored_at: dict[str, float] = {}
        self._counted: Counter[tuple[str, str]] = Counter()
        self._count_due = self._forget_due = 0.0
        self._connection = driver.KeptConnection(given.database, "replsite worker reports")
        self._flusher: BackgroundWriter[_Batch] | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Deletes the rows that a former process of this server left, and starts to write reports.

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
        """Writes the remaining reports to the database, and stops writing."""
        for key in list(self._clients):
            self._buffer.remove(key)
        self._count_due = 0.0
        written = self._flusher.stop() if self._flusher is not None else asyncio.sleep(0)
        await asyncio.gather(self.relay.stop(), written)

    # --- input ----------------------------------------------------------------------------------------------------

    def add(self, client: ReplicationClient, commands: Sequence[Command]) -> None:
        """Relays a client's commands that are for other clients, and buffers its reports. Ignores all other commands."""
        if relayed := [command for command in commands if isinstance(command, RELAYED)]:
            self.relay.pass_on(relayed, client)
        for command in commands:
            if self._buffer.add(client.key, command):
                self._clients[client.key] = client
        if self._buffer.has_reports:
            self._wake()

    def refusal(self, client: ReplicationClient, command: Command) -> str | None:
        """Returns the reason why a client may not report users of a worker process, or None if the client may do so.

        Certificates do not contain the random ID of a worker process. So the first certificate that reports users of a
        worker process owns the reports of this process. While a connection with this certificate reports users of the
        process, clients with other certificates can neither add users to the process nor clear them.
        """
        if client.rights is EVERYTHING or not isinstance(command, UserSync | ClearUserSync):
            return None
        owner = self._clients.get(self._buffer.connection_of(command.instance_id) or "", client)
        # Two connections with certificates without a name may have different certificates. So neither connection may
        # report for the other.
        certificate = client.rights.certificate
        if owner is client or (certificate and owner.rights.certificate == certificate):
            return None
        return (
            f"this certificate may not report users of worker process {command.instance_id[:100]}, which is another's"
        )

    def drop(self, command: Command) -> None:
        self._buffer.dropped[command.WORD] += 1

    def remove(self, client: ReplicationClient) -> None:
        """Records that a client's connection has ended, so that the users that it reported are deleted."""
        if self._clients.pop(client.key, None) is not None:
            self._stored_at.pop(client.key, None)
            self._buffer.remove(client.key)
            self._wake()

    def figures(self) -> dict[str, int]:
        return dict(self._buffer.dropped + self.relay.dropped + Counter({UserIP.WORD: self._addresses_dropped}))

    def _wake(self) -> None:
        if self._flusher is not None:
            self._flusher.wake()

    # --- on the loop ----------------------------------------------------------------------------------------------

    def _collect(self) -> _Batch | None:
        now = time.monotonic()
        batch = _Batch(self._buffer.drain(), self._due_connections(now), self._counts(now))
        if now >= self._forget_due:
            self._forget_due, batch.forget = now + FORGET_SECONDS, True
        return batch or None

    def _due_connections(self, now: float) -> list[dict[str, Any]]:
        due = [key for key in self._buffer.connections() if now >= self._stored_at.get(key, 0.0) + NEWS_SECONDS]
        rows = []
        for key in due:
            client = self._clients[key]
            self._stored_at[key] = now
            age = max(now - client.connection.last_command_at, 0.0)
            name = (client.name or client.address)[:200].replace("\0", "\ufffd")
            rows.append({"key": key, "name": name, "address": client.address, "age": age})
        return rows

    def _counts(self, now: float) -> list[dict[str, Any]]:
        """Returns the growth of this process's counts, as rows to add to the table of counts.

        A row has ``kind``, ``name``, and as ``total`` the number by which the count grew since the last call that
        computed rows. Such a call is made at most every ``COUNT_SECONDS``. A call in between returns an empty list.
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
                stored = self._write_addresses(cursor, batch)
            self._room -= stored.inserted - stored.deleted
            self._addresses_dropped += stored.refused + stored.deleted
            if stored.refused:
                self._full.begins(_FULL)
            elif self._room > 0:
                self._full.ends()
            if batch.reports.acknowledged and find("federation") is not None:  # a site may have no such stream
                worker_sql.free_acknowledged(cursor)

    def _write_all(self, cursor: Any, batch: _Batch) -> None:
        reports = batch.reports
        worker_sql.forget_connections(cursor, sorted(reports.ended))
        worker_sql.forget_workers(cursor, sorted(reports.cleared))
        worker_sql.store_connections(cursor, batch.connections, self._served_by)
        worker_sql.end_syncs_elsewhere(cursor, reports.owners)
        worker_sql.end_syncs(cursor, [sync._asdict() for sync in reports.ends])
        worker_sql.store_syncs(cursor, [sync._asdict() | {"ms": ms} for sync, ms in reports.starts.items()])
        worker_sql.store_acknowledgements(cursor, reports.acknowledged)
        worker_sql.add_counts(cursor, batch.counts)

    def _write_addresses(self, cursor: Any, batch: _Batch) -> worker_sql.StoredAddresses:
        given = self._settings
        if batch.forget:
            if worker_sql.forget_old(cursor, given.worker_silence_seconds, given.user_address_days * 86_400):
                self._forget_due = 0.0
            self._room = given.user_address_limit - worker_sql.count_addresses(cursor, given.user_address_limit)
        return worker_sql.store_addresses(cursor, _address_rows(batch.reports), self._room)


def _address_rows(reports: Reports) -> list[dict[str, Any]]:
    return [
        {"user": user, "digest": digest, "ip": ip, "device": device, "agent": agent, "ms": ms}
        for (user, digest, ip), (device, agent, ms) in reports.addresses.items()
    ]


_of_process: WorkerReports | None = None


def process_reports(served_by: str = "") -> WorkerReports:
    """Returns the `WorkerReports` of this process.

    The first call creates the object, but does not start it.
    """
    global _of_process  # noqa: PLW0603 - one per process by its nature
    if _of_process is None:
        _of_process = WorkerReports(process_broadcaster(served_by), served_by)
    return _of_process
