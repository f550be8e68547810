"""Epochs: a restore of the database begins a new epoch, and tokens of another epoch are refused.

A restored backup lacks the newest facts, and its sequences will give out the IDs of these facts again. A reader with a
cursor from before the restore would skip the new facts under these IDs. The reader could also rely on facts that are
gone. So each epoch has a random word, and stored tokens carry this word. Tokens on the wire are plain numbers without
this word, because a connection does not outlive its database.

A restore is detected without an operator. The newest row of ``streams_epoch`` stores the identity of the database: the
columns of ``Identity``. A restored copy has another identity.

===========================  =================================================================
difference                   what happened
===========================  =================================================================
system identifier            a dump was loaded into another cluster (or ``pg_upgrade`` made one)
database or table number     a dump was loaded into the same cluster
timeline                     a recovery to a point in time, or a promoted standby
===========================  =================================================================

A promoted standby may lack the primary's last commits, unless its replication was synchronous.
``REPLSITE_FAILOVER_KEEPS_EPOCH`` declares that the replication is synchronous. A restore that cannot be detected (files
put back under a stopped server without a recovery) is declared with ``manage.py check_streams --new-epoch``.

The functions need a cursor of any connection, in a transaction or not.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from streams.conf import stream_settings
from streams.core.queries import NEWEST_EPOCH
from streams.db import driver
from streams.errors import EpochChanged, TokenError
from streams.runtime.logs import get_logger

log = get_logger(__name__)
_WORD_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_WORD_LENGTH = 10
_MARK = "@"
#: insufficient_privilege, read_only_sql_transaction
_NOT_ALLOWED = frozenset({"42501", "25006"})

#: The identity of this database. The timeline is null on a standby, which cannot know it and begins no epoch.
_IDENTITY = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
       'streams_epoch'::regclass::oid::bigint,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint END
"""
#: A database that was moved without its sequences gets its first row of a new epoch before anybody can repair them. The newest
#: epoch is the one with the highest number.
_INSERT = """
INSERT INTO streams_epoch (id, word, follows, reason, system_identifier, database_oid, table_oid, timeline)
VALUES (
    greatest(nextval(pg_get_serial_sequence('streams_epoch', 'id')), (SELECT coalesce(max(id), 0) + 1 FROM streams_epoch)),
    %s, %s, %s, %s, %s, %s, %s
) ON CONFLICT DO NOTHING
"""
_KEEP = """
UPDATE streams_epoch SET system_identifier = %s, database_oid = %s, table_oid = %s, timeline = %s
WHERE id = (SELECT max(id) FROM streams_epoch)
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a database, which changes with a restore. ``timeline`` is None on a standby."""

    system_identifier: str
    database_oid: int
    table_oid: int
    timeline: int | None


def why_new(then: Identity, now: Identity, *, failover_keeps: bool) -> str | None:
    """Returns the evidence that the database was restored between ``then`` and ``now``; None if there is no such evidence."""
    if now.timeline is None:
        return None
    if then.system_identifier != now.system_identifier:
        return f"restored into another cluster ({then.system_identifier} -> {now.system_identifier})"
    if (then.database_oid, then.table_oid) != (now.database_oid, now.table_oid):
        return "restored into the same cluster (database or table recreated)"
    if then.timeline != now.timeline and not failover_keeps:
        return f"recovered or promoted (timeline {then.timeline} -> {now.timeline})"
    return None


def current_epoch(cursor: Any) -> str:
    """Returns the word of the present epoch. Begins a new epoch if the identity of the database has changed.

    A standby never begins an epoch. On a standby, returns the word of the primary, or empty text if the primary has no
    epoch yet.
    """
    word, then, now = _read_identity(cursor)
    if then is None:
        return _insert_epoch(cursor, None, "first start", now) if now.timeline is not None else ""
    reason = why_new(then, now, failover_keeps=stream_settings().failover_keeps_epoch)
    return word if reason is None else _insert_epoch(cursor, word, reason, now)


def readable_epoch(cursor: Any) -> str:
    """Returns the word of the present epoch for a role that may only read, or empty text if the role cannot know it.

    The text is empty in two cases. The role may not query the identity of the database. Or the database was restored
    and needs a new epoch, which the role may not begin. Call this function in autocommit mode.
    """
    try:
        return current_epoch(cursor)
    except driver.DatabaseError as error:
        if driver.sqlstate(error) not in _NOT_ALLOWED:
            raise
        return ""


def is_standby(cursor: Any) -> bool:
    cursor.execute("SELECT pg_is_in_recovery()")
    return bool(cursor.fetchone()[0])


def epoch_changed(known: str, found: str) -> bool:
    """Returns true if positions that were read in epoch ``known`` are invalid in the present epoch ``found``.

    ``known`` is empty if no position was read yet.
    """
    return known not in ("", found)


def begin_epoch(cursor: Any, reason: str) -> str:
    """Begins a new epoch on an operator's request. Tokens that were issued before are refused from now on."""
    word, then, now = _read_identity(cursor)
    return _insert_epoch(cursor, word if then is not None else None, reason, now)


def keep_epoch(cursor: Any) -> str:
    """Keeps the present epoch for a database that was moved without loss (``pg_upgrade``, a moved cluster).

    Stores the new identity in the newest row of ``streams_epoch``. Call this function before any process of the site
    has started on the moved database. Returns the epoch's word.
    """
    word, then, now = _read_identity(cursor)
    if then is None:
        return current_epoch(cursor)
    cursor.execute(_KEEP, [now.system_identifier, now.database_oid, now.table_oid, now.timeline])
    log.warning("epoch.kept", epoch=word)
    return word


def _read_identity(cursor: Any) -> tuple[str, Identity | None, Identity]:
    # The row comes first, as it may have to wait for a restore that replaces the tables in one transaction. In the other order,
    # the identity is that of the table of before, and so is the one in the row, which comes from the dump.
    cursor.execute(NEWEST_EPOCH)
    row = cursor.fetchone()
    cursor.execute(_IDENTITY)
    now = Identity(*cursor.fetchone())
    return ("", None, now) if row is None else (row[0], Identity(*row[1:]), now)


def _insert_epoch(cursor: Any, before: str | None, reason: str, now: Identity) -> str:
    """Begins an epoch and returns its word.

    If another process begins an epoch at the same moment, returns the word of that epoch.
    """
    # An epoch has one successor (`follows` is unique). A and B detect a restore at once: A inserts its word, B's insert
    # waits for A's commit and inserts nothing, and B returns A's word. Both rows may have the same number, too.
    fresh = "".join(secrets.choice(_WORD_LETTERS) for _ in range(_WORD_LENGTH))
    place = [now.system_identifier, now.database_oid, now.table_oid, now.timeline or 0]
    cursor.execute(_INSERT, [fresh, before or "", reason, *place])
    if cursor.rowcount == 0:
        cursor.execute(NEWEST_EPOCH)
        return str(cursor.fetchone()[0])
    if before is not None:
        log.warning("epoch.began", epoch=fresh, was=before, reason=reason)
    return fresh


def check_epoch(cursor: Any, kept: str, subject: str) -> str:
    """Returns the present epoch. Raises ``EpochChanged`` if ``kept``, the epoch of a token, is another epoch.

    ``subject`` names the token in the error message. An empty ``kept`` is accepted, because there is nothing to check: the
    token is older than epochs, or its client does not know them.
    """
    now = current_epoch(cursor)
    check_same(cursor, kept, now, subject)
    return now


def stored_epoch(cursor: Any) -> str:
    """Returns the newest stored epoch, or empty text if no epoch was stored yet. Begins no epoch.

    If no writer has noticed a restore yet, this function does not notice the restore either. That is safe: no fact is
    appended before a writer begins the new epoch, so all facts still belong to the stored epoch.
    """
    cursor.execute(NEWEST_EPOCH)
    row = cursor.fetchone()
    return "" if row is None else str(row[0])


def check_same(cursor: Any, kept: str, now: str, subject: str) -> None:
    """Raises ``EpochChanged`` if ``kept``, the epoch of a token, is not the present epoch ``now`` (``check_epoch``)."""
    if not kept or kept == now:
        return
    cursor.execute("SELECT began_at, reason FROM streams_epoch WHERE word = %s", [now])
    row = cursor.fetchone()
    since = f"since {row[0]:%Y-%m-%d %H:%M:%S}, {row[1]}" if row else "it was recreated"
    raise EpochChanged(
        f"{subject} is of epoch {kept[:40]}, but the database is in epoch {now} ({since}). Facts that it covers may be gone, and "
        f"their IDs may have other facts. Start again: resync reader NAME --from TOKEN, or take a new token."
    )


def stamp(token: str, word: str) -> str:
    """Returns the text of a token with its epoch, such as ``m5~1.7@k3x…``.

    Such texts are stored, and never sent on the wire.
    """
    return f"{token}{_MARK}{word}" if word else token


def unstamp(text: str) -> tuple[str, str]:
    """Splits a stored token into (token, epoch). The epoch is empty if the text has no epoch. Raises ``TokenError``."""
    token, mark, word = text.partition(_MARK)
    if mark and not (word.isalnum() and word.isascii() and len(word) <= 40):
        raise TokenError(f"Token {text[:100]!r} cannot be read: the part after {_MARK} is no epoch.")
    return token, word
