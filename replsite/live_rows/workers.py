"""The table of workers: a row for each kind of report or counter, and below it one for each worker or reason (pure).

Here are the classes of these rows, the query that fills them, and the columns that show them. The query limits the number of
rows, because clients choose the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import orjson

from replsite.live_rows.cells import Column, Group, Table, moment_cell, text_cell
from replsite.status.words import Severity, Verdict
from streams.runtime.amounts import count
from streams.runtime.moments import bounded
from streams.runtime.text import safe_text

#: Addresses are counted up to this number. If there are more, the number is marked as not exact.
MOST_ADDRESSES = 100_000
MOST_WORKERS = 200

#: Title and sentence for each kind of count. Counts of commands are not on the page, only in the metrics.
_COUNTED = {
    "closed": ("Connections that ended", "Why, since the tables were made."),
    "refused": ("Connections that were refused", "None of these has appeared."),
    "dropped": (
        "Reports that were dropped",
        "More came than may wait or be kept: REPLSITE_WORKER_REPORT_LIMIT, …_USER_ADDRESS_LIMIT.",
    ),
}
_WORKERS = f"""
WITH fresh AS (
    SELECT key, name, address, last_news_at FROM streams_workerconnection
    WHERE last_news_at >= clock_timestamp() - make_interval(secs => %(silence)s)
), syncing AS (
    SELECT f.name, f.address, f.last_news_at, s.worker, count(DISTINCT s.user_id) AS users
    FROM fresh f JOIN streams_syncinguser s ON s.connection_key = f.key
    GROUP BY f.key, f.name, f.address, f.last_news_at, s.worker
    ORDER BY f.name, s.worker LIMIT {MOST_WORKERS}
), acknowledged AS (
    SELECT instance_name, token, acknowledged_at FROM streams_federationacknowledgement
    ORDER BY instance_name LIMIT {MOST_WORKERS}
)
SELECT jsonb_build_object(
    'users', (SELECT count(DISTINCT s.user_id) FROM streams_syncinguser s JOIN fresh f ON f.key = s.connection_key),
    'syncing', (SELECT coalesce(jsonb_agg(to_jsonb(syncing)), '[]') FROM syncing),
    'acknowledged', (SELECT coalesce(jsonb_agg(to_jsonb(acknowledged)), '[]') FROM acknowledged),
    'addresses', (SELECT count(*) FROM (SELECT FROM streams_useraddress LIMIT {MOST_ADDRESSES + 1}) AS found),
    'counts', (SELECT coalesce(jsonb_agg(jsonb_build_array(kind, name, total) ORDER BY kind, name), '[]') FROM streams_wirecount)
)::text
"""


@dataclass(frozen=True, slots=True)
class SyncingView:
    """The syncing users of one worker process. ``name`` is what the worker calls itself, ``worker`` its random ID."""

    name: str
    worker: str
    address: str
    users: int
    last_news_at: datetime


@dataclass(frozen=True, slots=True)
class AcknowledgedView:
    """The position in the stream ``federation`` that a federation sender has acknowledged."""

    instance: str
    token: int
    acknowledged_at: datetime


@dataclass(frozen=True, slots=True)
class CountView:
    """A total of what happened on the connections of all servers, such as sent commands, or a total of rows that jobs changed.

    ``kind`` is closed, refused, received, sent, rdata, updates, dropped or job rows.
    """

    kind: str
    name: str
    total: int


@dataclass(frozen=True, slots=True)
class WorkersView:
    """The reports of workers, over all servers, and the counters of connections.

    ``addresses`` is the number of stored user addresses.
    """

    users_syncing: int = 0
    syncing: tuple[SyncingView, ...] = ()
    acknowledged: tuple[AcknowledgedView, ...] = ()
    addresses: int = 0
    addresses_exact: bool = True
    counts: tuple[CountView, ...] = ()

    def counted(self, kind: str) -> dict[str, int]:
        return {count.name: count.total for count in self.counts if count.kind == kind}


def read_workers(cursor: Any, silence_seconds: float) -> WorkersView:
    """Returns the reports of workers, without those of connections that were silent for ``silence_seconds``."""
    cursor.execute(_WORKERS, {"silence": silence_seconds})
    found = orjson.loads(cursor.fetchone()[0])
    return WorkersView(
        users_syncing=found["users"],
        syncing=tuple(
            SyncingView(
                safe_text(row["name"]),
                safe_text(row["worker"]),
                safe_text(row["address"]),
                row["users"],
                _time(row["last_news_at"]),
            )
            for row in found["syncing"]
        ),
        acknowledged=tuple(
            AcknowledgedView(safe_text(row["instance_name"]), row["token"], _time(row["acknowledged_at"]))
            for row in found["acknowledged"]
        ),
        addresses=min(found["addresses"], MOST_ADDRESSES),
        addresses_exact=found["addresses"] <= MOST_ADDRESSES,
        counts=tuple(CountView(kind, name, total) for kind, name, total in found["counts"]),
    )


def _time(text: str) -> datetime:
    return bounded(text, lambda: datetime.fromisoformat(text))


@dataclass(frozen=True, slots=True)
class _Sum:
    """The first row of a group of reports. Reports of workers are neither good nor bad by themselves."""

    title: str
    number: str
    blank: ClassVar[str] = ""


WORKERS = Table(
    "Workers",
    "What workers report, and how connections ended, on all servers.",
    "No worker has reported anything.",
    (
        Column("Report", {
            _Sum: lambda row: row.title,
            SyncingView: lambda row: text_cell(row.name, row.address),
            AcknowledgedView: lambda row: row.instance,
            CountView: lambda row: row.name,
        }, number=False),
        Column("Number", {
            _Sum: lambda row: row.number,
            SyncingView: lambda row: count(row.users),
            AcknowledgedView: lambda row: count(row.token),
            CountView: lambda row: count(row.total),
        }),
        Column("Last news", {
            SyncingView: lambda row: moment_cell(row.last_news_at),
            AcknowledgedView: lambda row: moment_cell(row.acknowledged_at),
            CountView: lambda _: "",
        }),
    ),
    has_words=False,
)  # fmt: skip


def worker_groups(workers: WorkersView) -> list[Group]:
    """Returns a group for each kind of report, with a row for each worker or reason."""
    groups: list[Group] = []

    def add(key: str, title: str, number: str, rows: Iterable[tuple[str, Any]], sentence: str = "") -> None:
        head = WORKERS.row(_Sum(title, number), status=Verdict("", Severity.FINE, sentence))
        groups.append(Group(key=key, head=head, rows=[WORKERS.row(row, name) for name, row in rows]))

    if workers.syncing:
        rows = ((f"{row.name} {row.worker}", row) for row in workers.syncing)
        add("syncing", "Users that sync", count(workers.users_syncing), rows)
    if workers.acknowledged:
        add("federation", "Federation acknowledged up to", "", ((row.instance, row) for row in workers.acknowledged))
    if workers.addresses:
        about = "" if workers.addresses_exact else "more than "
        add("addresses", "Addresses of users", f"{about}{count(workers.addresses)}", ())
    for kind, (title, sentence) in _COUNTED.items():
        if found := [row for row in workers.counts if row.kind == kind]:
            add(kind, title, count(sum(row.total for row in found)), ((row.name, row) for row in found), sentence)
    return groups
