"""Named SQL for the tables of workers' reports and of command counts (pure).

Every function is given a cursor. The caller decides about the transaction and handles errors. The time of a
connection's last command is given as an age in seconds, so that the stored time is by the database's clock. Times
called ``ms`` were reported by workers, as Unix times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

__all__ = [
    "add_counts",
    "counted_names",
    "end_syncs",
    "forget_connections",
    "forget_old",
    "forget_server",
    "forget_workers",
    "store_acknowledgements",
    "store_addresses",
    "store_connections",
    "store_syncs",
    "take_over",
]

#: Inserts connections over which users sync, or updates their names and the times of their last command.
_CONNECTIONS = """
INSERT INTO streams_workerconnection AS known (key, name, address, served_by, connected_at, last_news_at)
SELECT key, name, address, %(served_by)s, clock_timestamp(), clock_timestamp() - make_interval(secs => age)
FROM jsonb_to_recordset(%(rows)s::jsonb) AS given (key text, name text, address text, age double precision)
ON CONFLICT (key) DO UPDATE SET name = excluded.name,
    last_news_at = greatest(known.last_news_at, excluded.last_news_at)
"""
#: Inserts users that started to sync, or updates the time of those that synced again.
_SYNCS = """
INSERT INTO streams_syncinguser AS known (connection_key, worker, user_id, device_id, last_sync_at)
SELECT connection, worker, "user", device, to_timestamp(ms / 1000.0)
FROM jsonb_to_recordset(%(rows)s::jsonb) AS given (connection text, worker text, "user" text, device text, ms double precision)
ON CONFLICT (connection_key, worker, user_id, device_id) DO UPDATE SET last_sync_at = excluded.last_sync_at
"""
_ENDS = """
DELETE FROM streams_syncinguser s
USING jsonb_to_recordset(%(rows)s::jsonb) AS given (connection text, worker text, "user" text, device text)
WHERE s.connection_key = given.connection AND s.worker = given.worker AND s.user_id = given."user"
  AND s.device_id = given.device
"""
#: Deletes the users that a worker reported over connections other than its present one.
_TAKE_OVER = """
DELETE FROM streams_syncinguser s
USING jsonb_each_text(%(rows)s::jsonb) AS given (worker, connection)
WHERE s.worker = given.worker AND s.connection_key <> given.connection
"""
_FORGET_WORKERS = "DELETE FROM streams_syncinguser WHERE worker = ANY(%(workers)s)"
_FORGET_CONNECTIONS = """
WITH gone AS (DELETE FROM streams_workerconnection WHERE key = ANY(%(keys)s))
DELETE FROM streams_syncinguser WHERE connection_key = ANY(%(keys)s)
"""
#: Deletes the connections of a server's earlier run, while it starts.
_FORGET_SERVER = """
WITH gone AS (DELETE FROM streams_workerconnection WHERE served_by = %(served_by)s RETURNING key)
DELETE FROM streams_syncinguser s USING gone WHERE s.connection_key = gone.key
"""
#: A time of the last command that lies in the future is from before the clock was set back. It is set to now. Otherwise
#: the connection would be kept until the clock has caught up.
_NEWS_AHEAD = (
    "UPDATE streams_workerconnection SET last_news_at = clock_timestamp() WHERE last_news_at > clock_timestamp()"
)
#: Deletes connections without a recent command: their server died, or they send nothing at all.
_FORGET_SILENT = """
WITH gone AS (
    DELETE FROM streams_workerconnection WHERE last_news_at < clock_timestamp() - make_interval(secs => %(silence)s)
    RETURNING key)
DELETE FROM streams_syncinguser s USING gone WHERE s.connection_key = gone.key
"""
_FORGET_ADDRESSES = """
DELETE FROM streams_useraddress WHERE id IN (
    SELECT id FROM streams_useraddress WHERE last_seen_at < clock_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY last_seen_at LIMIT 1000)
"""
#: A token beyond the stream's position belongs to an earlier generation. The sender has then handled nothing of the present
#: one, so 0 is stored.
_ACKNOWLEDGEMENTS = """
INSERT INTO streams_federationacknowledgement (instance_name, token, acknowledged_at)
SELECT key, CASE WHEN value::bigint > announced.position THEN 0 ELSE value::bigint END, clock_timestamp()
FROM jsonb_each_text(%(rows)s::jsonb),
     (SELECT max(position) AS position FROM streams_streamposition WHERE stream = 'federation') AS announced
ON CONFLICT (instance_name) DO UPDATE SET token = excluded.token, acknowledged_at = excluded.acknowledged_at
"""
#: Inserts or updates users' addresses. A time in the future is replaced by now, because no later report could replace
#: it. Sorted by key, so that two servers that write the same rows lock them in the same order and cannot deadlock.
_ADDRESSES = """
INSERT INTO streams_useraddress AS known (user_id, token_digest, ip, device_id, user_agent, last_seen_at)
SELECT "user", digest, ip, device, agent, least(to_timestamp(ms / 1000.0), clock_timestamp())
FROM jsonb_to_recordset(%(rows)s::jsonb)
    AS given ("user" text, digest text, ip text, device text, agent text, ms double precision)
ORDER BY "user", digest, ip
ON CONFLICT (user_id, token_digest, ip) DO UPDATE SET device_id = excluded.device_id, user_agent = excluded.user_agent,
    last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at)
"""
#: Adds to the counts; sorted by key for the same reason as `_ADDRESSES`.
_COUNTS = """
INSERT INTO streams_wirecount AS known (kind, name, total)
SELECT kind, name, total FROM jsonb_to_recordset(%(rows)s::jsonb) AS given (kind text, name text, total bigint)
ORDER BY kind, name
ON CONFLICT (kind, name) DO UPDATE SET total = known.total + excluded.total
"""

Row = Mapping[str, Any]


def store_connections(cursor: Any, rows: Sequence[Row], served_by: str) -> None:
    """Inserts or updates connections.

    A row has ``key``, ``name``, ``address`` and ``age`` (seconds since the last command).
    """
    _write(cursor, _CONNECTIONS, rows, served_by=served_by)


def store_syncs(cursor: Any, rows: Sequence[Row]) -> None:
    """Inserts or updates syncing users. A row has ``connection``, ``worker``, ``user``, ``device`` and ``ms``."""
    _write(cursor, _SYNCS, rows)


def end_syncs(cursor: Any, rows: Sequence[Row]) -> None:
    """Deletes syncing users. A row has ``connection``, ``worker``, ``user`` and ``device``."""
    _write(cursor, _ENDS, rows)


def take_over(cursor: Any, connections: Mapping[str, str]) -> None:
    """Deletes the syncing users that a worker reported over another connection than its present one.

    ``connections`` maps each worker to its present connection.
    """
    _write(cursor, _TAKE_OVER, connections)


def forget_workers(cursor: Any, workers: Sequence[str]) -> None:
    """Deletes all syncing users of these worker processes."""
    if workers:
        cursor.execute(_FORGET_WORKERS, {"workers": list(workers)})


def forget_connections(cursor: Any, keys: Sequence[str]) -> None:
    """Deletes these connections and all syncing users reported over them."""
    if keys:
        cursor.execute(_FORGET_CONNECTIONS, {"keys": list(keys)})


def forget_server(cursor: Any, served_by: str) -> None:
    """Deletes connections and syncing users from an earlier run of this server."""
    cursor.execute(_FORGET_SERVER, {"served_by": served_by})


def forget_old(cursor: Any, silence_seconds: float, address_seconds: float) -> None:
    """Deletes connections without a command for ``silence_seconds``, with their users.

    Also deletes up to 1,000 addresses that were not seen for ``address_seconds``.
    """
    cursor.execute(_NEWS_AHEAD)
    cursor.execute(_FORGET_SILENT, {"silence": silence_seconds})
    cursor.execute(_FORGET_ADDRESSES, {"seconds": address_seconds})


def store_acknowledgements(cursor: Any, tokens: Mapping[str, int]) -> None:
    """Stores the last acknowledged token of each federation sender: ``{instance: token}``."""
    _write(cursor, _ACKNOWLEDGEMENTS, tokens)


def store_addresses(cursor: Any, rows: Sequence[Row]) -> None:
    """Inserts or updates users' addresses.

    A row has ``user``, ``digest`` (of the access token), ``ip``, ``device``, ``agent`` and ``ms``.
    """
    _write(cursor, _ADDRESSES, rows)


def add_counts(cursor: Any, rows: Sequence[Row]) -> None:
    """Adds to the stored counts. A row has ``kind``, ``name`` and ``total``, which is the number to add."""
    _write(cursor, _COUNTS, rows)


def counted_names(cursor: Any, kinds: Sequence[str]) -> list[str]:
    """Returns the names of these kinds in the table of counts, at most 10,000."""
    cursor.execute("SELECT name FROM streams_wirecount WHERE kind = ANY(%(kinds)s) LIMIT 10000", {"kinds": list(kinds)})
    return [name for (name,) in cursor.fetchall()]


def _write(cursor: Any, sql: str, rows: Sequence[Row] | Mapping[str, Any], **more: Any) -> None:
    if rows:
        given = rows if isinstance(rows, Mapping) else list(rows)
        cursor.execute(sql, {"rows": orjson.dumps(given).decode(), **more})
