"""Buffers the reports of workers until they are written to the database (pure).

A later report replaces an earlier one about the same user, worker or sender, so a flood of reports costs one row. The
buffer keeps the last state and not the order of the reports. `Reports` therefore defines the order of writing. The
buffer is bounded. A report is dropped if the buffer is full, or if a name is too long for a column or index. Dropped
reports are counted by command.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from streams.replication.protocol.commands import ClearUserSync, Command, FederationAck, UserIP, UserSync
from streams.runtime.text import storable

#: Longest user, device, worker and instance name, and address. This is the limit of the protocol, and such a text fits
#: into an index.
LONGEST_NAME_BYTES = 255
LONGEST_AGENT = 250
#: 1 January 2200. Later times are mistakes. They are replaced by this time, because the database cannot store the largest
#: times.
LATEST_MS = 7_258_118_400_000


class Sync(NamedTuple):
    """A user that syncs on a worker process with a device, as reported on one connection.

    ``device`` is empty if the report names no device.
    """

    connection: str
    worker: str
    user: str
    device: str


#: (user, digest of the token, address) -> (device, user agent, ms)
Addresses = dict[tuple[str, str, str], tuple[str, str, int]]


@dataclass(slots=True)
class Reports:
    """A batch of reports, to be written in the order of the fields.

    The rows of all syncing users are deleted that were reported over a connection in ``ended``, or by a worker in
    ``cleared``. ``owners`` maps a worker to the connection over which the worker reports now. ``ends`` are the
    users that stopped syncing. ``starts`` maps each user that started syncing to the time in milliseconds.
    ``acknowledged`` maps a federation sender to a token. ``addresses`` are users' addresses.
    """

    ended: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    owners: dict[str, str] = field(default_factory=dict)
    ends: set[Sync] = field(default_factory=set)
    starts: dict[Sync, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    addresses: Addresses = field(default_factory=dict)

    def __bool__(self) -> bool:
        parts = (self.ended, self.cleared, self.owners, self.ends, self.starts, self.acknowledged, self.addresses)
        return any(parts)


class ReportBuffer:
    """The buffered reports of all connections. `drain` returns the reports to write to the database.

    ``limit`` bounds the number of syncing users, and the number of waiting reports of each kind. Further users and
    reports are dropped and counted. A connection may use at most as many places of the buffer as are still free. So a
    connection that floods the server gets half of the places, and two such connections get two thirds together. The
    rest is free for other connections.
    """

    def __init__(self, limit: int) -> None:
        self.dropped: Counter[str] = Counter()
        self._limit = limit
        self._reports = Reports()
        #: Worker process -> (the connection over which it reports, users that sync there now).
        self._workers: dict[str, tuple[str, set[Sync]]] = {}
        self._connections: dict[str, set[str]] = {}
        self._users = 0
        self._users_of: Counter[str] = Counter()
        #: Number of waiting reports by (connection, kind of report).
        self._waiting_of: Counter[tuple[str, str]] = Counter()

    def add(self, connection: str, command: Command) -> bool:
        """Buffers a report of a connection, or drops it if there is no room. Returns false if the command is not a report."""
        match command:
            case UserSync():
                self._add_sync(connection, command)
            case ClearUserSync(worker):
                self._clear(connection, worker)
            case FederationAck(instance, token):
                self._acknowledge(connection, instance, token)
            case UserIP():
                self._see(connection, command)
            case _:
                return False
        return True

    def remove(self, connection: str) -> None:
        """Records that the connection has ended, so that the users reported over it no longer sync."""
        workers = self._connections.pop(connection, None)
        if workers is not None:
            for worker in workers:
                self._drop_worker(worker)
            self._reports.ended.add(connection)

    def drain(self) -> Reports:
        drained, self._reports = self._reports, Reports()
        self._waiting_of.clear()
        return drained

    @property
    def has_reports(self) -> bool:
        return bool(self._reports)

    def connections(self) -> list[str]:
        return list(self._connections)

    def connection_of(self, worker: str) -> str | None:
        found = self._workers.get(_name(worker) or "")
        return found[0] if found is not None else None

    # --- syncing users --------------------------------------------------------------------------------------------

    def _add_sync(self, connection: str, command: UserSync) -> None:
        device = "" if command.device_id in (None, "None") else command.device_id or ""
        names = [_name(text) for text in (command.instance_id, command.user_id, device)]
        if None in names:
            self.dropped[UserSync.WORD] += 1
            return
        sync = Sync(connection, *(name or "" for name in names))
        if command.is_syncing:
            self._start(sync, _milliseconds(command.last_sync_ms))
        else:
            self._end(sync)

    def _start(self, sync: Sync, milliseconds: int) -> None:
        owner, syncs = self._workers.get(sync.worker, ("", set()))
        is_moved = owner != sync.connection
        if is_moved:
            syncs = set()
        # The limit applies to new users only, because a repeated start of a known user takes no further room. If there is
        # no room for the takeover, the start is dropped, too. Otherwise the database would have rows of the worker's
        # earlier connection beside the new row.
        is_over_limit = sync not in syncs and self._users_of[sync.connection] >= self._limit - self._users
        if is_over_limit or (is_moved and not self._move_worker(sync.worker, sync.connection, syncs)):
            self.dropped[UserSync.WORD] += 1
            return
        self._users += sync not in syncs
        self._users_of[sync.connection] += sync not in syncs
        syncs.add(sync)
        # A start replaces a waiting end of the same user, and frees its room.
        if sync in self._reports.ends:
            self._reports.ends.discard(sync)
            self._waiting_of[sync.connection, "ends"] -= 1
        self._reports.starts[sync] = milliseconds

    def _move_worker(self, worker: str, connection: str, syncs: set[Sync]) -> bool:
        """Records that a worker process now reports over this connection.

        Drops the users that the worker reported over an earlier connection. If there is no room for the report, changes
        nothing and returns false.
        """
        is_new = worker not in self._reports.owners
        if is_new and not self._find_room(connection, "workers", self._waiting_workers()):
            return False
        self._drop_worker(worker)
        self._workers[worker] = connection, syncs
        self._connections.setdefault(connection, set()).add(worker)
        self._reports.owners[worker] = connection
        return True

    def _end(self, sync: Sync) -> None:
        # The database may have a row of the user even if the buffer does not know the user.
        _, syncs = self._workers.get(sync.worker, ("", set()))
        if sync in syncs:
            self._users -= 1
            self._less_of(sync.connection, 1)
            syncs.discard(sync)
            if not syncs:
                self._drop_worker(sync.worker)
        self._reports.starts.pop(sync, None)
        if sync in self._reports.ends or self._find_room(sync.connection, "ends", len(self._reports.ends)):
            self._reports.ends.add(sync)
        else:
            self.dropped[UserSync.WORD] += 1

    def _clear(self, connection: str, text: str) -> None:
        worker = _name(text)
        is_new = worker not in self._reports.cleared
        if worker is None or (is_new and not self._find_room(connection, "workers", self._waiting_workers())):
            self.dropped[ClearUserSync.WORD] += 1
            return
        self._drop_worker(worker)
        self._reports.cleared.add(worker)

    def _drop_worker(self, worker: str) -> None:
        connection, syncs = self._workers.pop(worker, ("", set()))
        self._users -= len(syncs)
        self._less_of(connection, len(syncs))
        for sync in syncs:
            self._reports.starts.pop(sync, None)
        self._connections.get(connection, set()).discard(worker)

    def _less_of(self, connection: str, number: int) -> None:
        self._users_of[connection] -= number
        if self._users_of[connection] <= 0:
            del self._users_of[connection]

    def _find_room(self, connection: str, kind: str, waiting: int) -> bool:
        if self._waiting_of[connection, kind] >= self._limit - waiting:
            return False
        self._waiting_of[connection, kind] += 1
        return True

    def _waiting_workers(self) -> int:
        return len(self._reports.cleared) + len(self._reports.owners)

    # --- other reports --------------------------------------------------------------------------------------------

    def _acknowledge(self, connection: str, text: str, token: int) -> None:
        instance = _name(text)
        waiting = self._reports.acknowledged
        if instance is None or not (instance in waiting or self._find_room(connection, "acknowledged", len(waiting))):
            self.dropped[FederationAck.WORD] += 1
            return
        waiting[instance] = token

    def _see(self, connection: str, command: UserIP) -> None:
        user, ip, device = (_name(text or "") for text in (command.user_id, command.ip, command.device_id))
        if user is None or ip is None or device is None:
            self.dropped[UserIP.WORD] += 1
            return
        token = (command.access_token or "").encode("utf-8", "surrogatepass")
        key = user, hashlib.sha256(token).hexdigest(), ip
        waiting = self._reports.addresses
        if key not in waiting and not self._find_room(connection, "addresses", len(waiting)):
            self.dropped[UserIP.WORD] += 1
            return
        agent = storable(command.user_agent or "")[:LONGEST_AGENT]
        milliseconds = max(_milliseconds(command.last_seen_ms), waiting.get(key, ("", "", 0))[2])
        waiting[key] = device, agent, milliseconds


def _name(text: str) -> str | None:
    # A name that is too long for an index is refused.
    clean = storable(text)
    return clean if len(clean.encode()) <= LONGEST_NAME_BYTES else None


def _milliseconds(number: int) -> int:
    return min(max(number, 0), LATEST_MS)
