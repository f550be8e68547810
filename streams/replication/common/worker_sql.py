"""Named SQL for the tables of workers' reports and of command counts (pure).

Every function gets a database cursor. The caller opens the transaction and handles errors. The time of a connection's
last command is passed as an age in seconds, so that the stored time is by the database's clock. Times called ``ms``
were reported by workers, as Unix times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from streams.catalog.declarations import FEDERATION_KEPT_SECONDS

#: Most addresses that are kept of a user: as many as ``streams.workers.seen_addresses`` returns.
MOST_ADDRESSES_OF_USER = 1_000
#: Most addresses that one call of `forget_old` deletes, so that its transaction stays short.
MOST_FORGOTTEN = 10_000
#: The most federation senders whose acknowledgements are stored.
MOST_SENDERS = 1_000

_FREE_ACKNOWLEDGED = """
DELETE FROM streams_federation WHERE stream_id <= (
    SELECT min(token) FROM streams_federationacknowledgement
    WHERE acknowledged_at > clock_timestamp() - make_interval(secs => %(kept)s)
) AND (SELECT count(*) FROM streams_federationacknowledgement) < %(most)s
"""
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
_END_ELSEWHERE = """
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
#: If the time of a last command lies in the future, the clock was set back since then. This time is replaced by the
#: present time. Otherwise the row of the connection would be kept until the clock reaches the old time.
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
#: Deletes federation senders whose last acknowledgement is too old to count (`_FREE_ACKNOWLEDGED`).
_FORGET_SENDERS = """
DELETE FROM streams_federationacknowledgement WHERE acknowledged_at < clock_timestamp() - make_interval(secs => %s)
"""
#: Deletes the addresses that were not seen for longest. Rows that another server writes now are skipped, so that no two servers
#: wait for each other.
_FORGET_ADDRESSES = """
DELETE FROM streams_useraddress WHERE id = ANY(ARRAY(
    SELECT id FROM streams_useraddress WHERE last_seen_at < clock_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY last_seen_at LIMIT %(most)s FOR UPDATE SKIP LOCKED))
"""
#: Deletes all but the latest addresses of these users.
_FORGET_ADDRESSES_OF = """
DELETE FROM streams_useraddress WHERE id = ANY(ARRAY(
    SELECT id FROM streams_useraddress WHERE id = ANY(ARRAY(
        SELECT older.id FROM unnest(%(users)s::text[]) AS name, LATERAL (
            SELECT id FROM streams_useraddress WHERE user_id = name ORDER BY last_seen_at DESC, id OFFSET %(kept)s
        ) AS older
    )) FOR UPDATE SKIP LOCKED))
"""
_COUNT_ADDRESSES = "SELECT count(*) FROM (SELECT FROM streams_useraddress LIMIT %(most)s) AS found"
#: Updates known senders, and inserts new ones only as long as there are fewer than ``most``.
#: A token beyond the stream's position belongs to an earlier generation. The sender has then handled no fact of the present
#: generation, so 0 is stored.
_ACKNOWLEDGEMENTS = """
INSERT INTO streams_federationacknowledgement (instance_name, token, acknowledged_at)
SELECT key, CASE WHEN value::bigint > announced.position THEN 0 ELSE value::bigint END, clock_timestamp()
FROM (
    SELECT given.key, given.value, known.instance_name IS NULL AS is_new,
           row_number() OVER (PARTITION BY known.instance_name IS NULL ORDER BY given.key) AS number
    FROM jsonb_each_text(%(rows)s::jsonb) AS given
    LEFT JOIN streams_federationacknowledgement known ON known.instance_name = given.key
) AS numbered, (SELECT max(position) AS position FROM streams_streamposition WHERE stream = 'federation') AS announced
WHERE NOT is_new OR number <= %(most)s - (SELECT count(*) FROM streams_federationacknowledgement)
ORDER BY key
ON CONFLICT (instance_name) DO UPDATE SET token = excluded.token, acknowledged_at = excluded.acknowledged_at
"""
#: Inserts or updates users' addresses, and returns the users of inserted rows. Inserts only as many addresses as ``room``
#: allows. A time in the future is replaced by the present time, because no later report could replace it. The rows are
#: sorted by key, so that two servers that write the same rows lock them in the same order and cannot deadlock.
_ADDRESSES = """
WITH given AS (
    SELECT given.*, known.id IS NULL AS is_new
    FROM jsonb_to_recordset(%(rows)s::jsonb)
        AS given ("user" text, digest text, ip text, device text, agent text, ms double precision)
    LEFT JOIN streams_useraddress known
        ON known.user_id = given."user" AND known.token_digest = given.digest AND known.ip = given.ip
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY is_new ORDER BY "user", digest, ip) AS number FROM given
)
INSERT INTO streams_useraddress AS known (user_id, token_digest, ip, device_id, user_agent, last_seen_at)
SELECT "user", digest, ip, device, agent, least(to_timestamp(ms / 1000.0), clock_timestamp())
FROM numbered WHERE NOT is_new OR number <= %(room)s
ORDER BY "user", digest, ip
ON CONFLICT (user_id, token_digest, ip) DO UPDATE SET device_id = excluded.device_id, user_agent = excluded.user_agent,
    last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at)
RETURNING user_id, xmax = 0
"""
#: Adds to the counts; sorted by key for the same reason as `_ADDRESSES`.
_COUNTS = """
INSERT INTO streams_wirecount AS known (kind, name, total)
SELECT kind, name, total FROM jsonb_to_recordset(%(rows)s::jsonb) AS given (kind text, name text, total bigint)
ORDER BY kind, name
ON CONFLICT (kind, name) DO UPDATE SET total = known.total + excluded.total
"""

Row = Mapping[str, Any]


class StoredAddresses(NamedTuple):
    """Three numbers of addresses, after a batch of addresses was stored.

    ``inserted`` addresses are new. ``refused`` addresses were not stored, because there was no room. ``deleted``
    addresses were the oldest of users with more than ``MOST_ADDRESSES_OF_USER`` addresses.
    """

    inserted: int
    refused: int
    deleted: int


def store_connections(cursor: Any, rows: Sequence[Row], served_by: str) -> None:
    """Inserts or updates workers' connections.

    A row has ``key``, ``name``, ``address`` and ``age`` (seconds since the last command).
    """
    _write(cursor, _CONNECTIONS, rows, served_by=served_by)


def store_syncs(cursor: Any, rows: Sequence[Row]) -> None:
    """Inserts or updates syncing users.

    A row has ``connection``, ``worker``, ``user``, ``device``, and ``ms``, the time of the report.
    """
    _write(cursor, _SYNCS, rows)


def end_syncs(cursor: Any, rows: Sequence[Row]) -> None:
    """Deletes syncing users. A row has ``connection``, ``worker``, ``user`` and ``device``."""
    _write(cursor, _ENDS, rows)


def end_syncs_elsewhere(cursor: Any, connections: Mapping[str, str]) -> None:
    """Deletes the syncing users that a worker reported over another connection than the worker's present connection.

    ``connections`` maps each worker to its present connection.
    """
    _write(cursor, _END_ELSEWHERE, connections)


def forget_workers(cursor: Any, workers: Sequence[str]) -> None:
    if workers:
        cursor.execute(_FORGET_WORKERS, {"workers": list(workers)})


def forget_connections(cursor: Any, keys: Sequence[str]) -> None:
    if keys:
        cursor.execute(_FORGET_CONNECTIONS, {"keys": list(keys)})


def forget_server(cursor: Any, served_by: str) -> None:
    """Deletes the connections and syncing users that an earlier process of the server ``served_by`` left in the tables."""
    cursor.execute(_FORGET_SERVER, {"served_by": served_by})


def forget_old(cursor: Any, silence_seconds: float, address_seconds: float) -> bool:
    """Deletes three kinds of old rows. Returns true if further old addresses may remain.

    Deletes connections without a command for ``silence_seconds``, with their syncing users. Deletes federation senders
    without an acknowledgement for ``FEDERATION_KEPT_SECONDS``. Deletes up to ``MOST_FORGOTTEN`` addresses that were not seen
    for ``address_seconds``.
    """
    cursor.execute(_NEWS_AHEAD)
    cursor.execute(_FORGET_SILENT, {"silence": silence_seconds})
    cursor.execute(_FORGET_SENDERS, [FEDERATION_KEPT_SECONDS])
    cursor.execute(_FORGET_ADDRESSES, {"seconds": address_seconds, "most": MOST_FORGOTTEN})
    return int(cursor.rowcount) == MOST_FORGOTTEN


def store_acknowledgements(cursor: Any, tokens: Mapping[str, int]) -> None:
    """Stores the last acknowledged token of each federation sender: ``{instance: token}``.

    The table holds at most ``MOST_SENDERS`` senders, because a client may give itself a new name on each connection.
    """
    _write(cursor, _ACKNOWLEDGEMENTS, tokens, most=MOST_SENDERS)


def free_acknowledged(cursor: Any) -> int:
    """Deletes the rows of the stream ``federation`` that all senders have acknowledged. Returns the number of deleted rows.

    Ignores a sender that has acknowledged nothing in ``FEDERATION_KEPT_SECONDS``. If ``MOST_SENDERS`` senders are
    stored, deletes nothing, because there may be further senders whose acknowledgements were not stored.
    """
    cursor.execute(_FREE_ACKNOWLEDGED, {"kept": FEDERATION_KEPT_SECONDS, "most": MOST_SENDERS})
    return int(cursor.rowcount)


def store_addresses(cursor: Any, rows: Sequence[Row], room: int) -> StoredAddresses:
    """Updates users' addresses, and inserts at most ``room`` new addresses.

    For each user with a new address, deletes all but the latest ``MOST_ADDRESSES_OF_USER`` addresses.

    A row has ``user``, ``digest`` (of the access token), ``ip``, ``device``, ``agent`` and ``ms``.
    """
    if not rows:
        return StoredAddresses(0, 0, 0)
    _write(cursor, _ADDRESSES, rows, room=max(room, 0))
    stored = cursor.fetchall()
    fresh = [user for user, is_fresh in stored if is_fresh]
    deleted = 0
    if fresh:
        cursor.execute(_FORGET_ADDRESSES_OF, {"users": sorted(set(fresh)), "kept": MOST_ADDRESSES_OF_USER})
        deleted = int(cursor.rowcount)
    return StoredAddresses(len(fresh), len(rows) - len(stored), deleted)


def count_addresses(cursor: Any, most: int) -> int:
    cursor.execute(_COUNT_ADDRESSES, {"most": most})
    return int(cursor.fetchone()[0])


def add_counts(cursor: Any, rows: Sequence[Row]) -> None:
    """Adds to the stored counts. A row has ``kind``, ``name`` and ``total``, which is the number to add."""
    _write(cursor, _COUNTS, rows)


def counted_names(cursor: Any, kinds: Sequence[str]) -> list[str]:
    cursor.execute("SELECT name FROM streams_wirecount WHERE kind = ANY(%(kinds)s) LIMIT 10000", {"kinds": list(kinds)})
    return [name for (name,) in cursor.fetchall()]


def _write(cursor: Any, sql: str, rows: Sequence[Row] | Mapping[str, Any], **more: Any) -> None:
    if rows:
        given = rows if isinstance(rows, Mapping) else list(rows)
        cursor.execute(sql, {"rows": orjson.dumps(given).decode(), **more})
