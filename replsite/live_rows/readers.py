"""The table of readers and connections: a row for each of them, and below it one for each stream that it follows (pure).

A named reader has two records: the row that its process writes, and its stored cursors. It is shown as long as it has a
cursor, even if no process runs it. Its positions are those of the row while a process runs it, and else those of the cursors.

Here are the classes of these rows, the queries that fill them, and the columns that show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from replsite.live_rows.cells import (
    HIDDEN,
    NO_STATUS,
    NOTHING,
    Cell,
    Column,
    Group,
    Row,
    Table,
    joined,
    lag_cell,
    moment_cell,
    per_second,
    quoted_key,
    rounded,
    summed,
    text_cell,
)
from replsite.status.series import Series
from replsite.status.words import ReaderWord, Severity, Verdict
from streams.core.json_codec import decode_stored_json
from streams.reading.reader_commands import command_of
from streams.reading.reader_table import NAMED
from streams.runtime.amounts import byte_size, count, counted, duration
from streams.runtime.gc_pause import collector_paused
from streams.runtime.silence import silent_seconds, silent_seconds_sql
from streams.runtime.text import safe_text

#: The most readers that are listed: those with a problem (the worst first), those without a problem, and closed readers. So
#: the page stays below a megabyte even if a thousand readers are stuck at once. ``streams --json`` lists all readers.
BAD_READERS_SHOWN = 100
FINE_READERS_SHOWN = 100
CLOSED_READERS_SHOWN = 10
#: Key of the row about a reader's rights. No stream has this name.
_RIGHTS_KEY = "\nrights"
#: Dead letters of a reader on a stream are counted up to this number.
MOST_PARKED = 10_000
#: Readers with an older heartbeat are not shown. Named ones always are, until they are forgotten.
READER_MEMORY_SECONDS = 86_400
#: Closed readers are shown for this time. So are connections whose server is gone, because a connection never comes back.
CLOSED_MEMORY_SECONDS = 300
MOST_READERS = 5_000

_READERS = f"""
SELECT key, name, kind, served_by, address, process_id, connected_at, heartbeat_at, jsonb_hash_extended(positions, 0),
       bytes_in, bytes_out, lines_in, lines_out, buffer_bytes, closed_at, close_reason,
       error, waiting_lines, kernel_send_bytes, kernel_read_bytes, queued::text, rights::text
FROM streams_reader
WHERE CASE WHEN left(key, {len(NAMED)}) = '{NAMED}' OR kind = 'spark' THEN true
           WHEN closed_at IS NOT NULL THEN {silent_seconds_sql("closed_at")} < {CLOSED_MEMORY_SECONDS}
           WHEN kind = 'connection' THEN {silent_seconds_sql("heartbeat_at")} < {CLOSED_MEMORY_SECONDS}
           ELSE {silent_seconds_sql("heartbeat_at")} < {READER_MEMORY_SECONDS} END
ORDER BY error = '', kind <> 'spark', left(key, {len(NAMED)}) <> '{NAMED}', kind = 'connection', closed_at IS NOT NULL,
         kind, name, key LIMIT {MOST_READERS}
"""
#: Index in a row of the hash of the reader's positions.
_POSITIONS_HASH = 8
_POSITIONS_OF_READERS = (
    "SELECT jsonb_hash_extended(positions, 0), positions::text FROM streams_reader WHERE key = ANY(%s)"
)
#: Selects stored cursors. Each has figures of its dead letters: their number, the time of the first, the error of the last
#: that was tried. Facts with no attempt wait behind it.
_CURSORS = f"""
SELECT c.reader, c.stream, c.base, c.entries::text, c.host, c.process_id, c.seen_at, c.moved_at, c.ended_at, c.error,
       coalesce(parked.facts, 0), parked.since, coalesce(last.error, ''),
       c.retry_asked_at IS NOT NULL AND c.retry_began_at IS NULL
FROM streams_storedcursor c
LEFT JOIN LATERAL (
    SELECT count(*) AS facts, min(parked_at) AS since FROM (
        SELECT parked_at FROM streams_parkedfact p WHERE p.reader = c.reader AND p.stream = c.stream
        ORDER BY p.token LIMIT {MOST_PARKED + 1}) AS few
) AS parked ON true
LEFT JOIN LATERAL (
    SELECT error FROM (
        SELECT error, token, attempts FROM streams_parkedfact p WHERE p.reader = c.reader AND p.stream = c.stream
        ORDER BY p.token DESC LIMIT {MOST_PARKED}) AS newest
    ORDER BY attempts = 0, token DESC LIMIT 1
) AS last ON true
ORDER BY c.error = '', parked.facts = 0, c.seen_at, c.reader, c.stream LIMIT {MOST_READERS}
"""
KnownPositions = dict[int, Mapping[str, Mapping[str, int]]]
"""Positions of readers, ``{stream: {writer: position}}``, by the database's hash of them."""


@dataclass(slots=True)
class ReaderStreamRow:
    """A reader on one stream. ``lag_seconds`` is the age of the oldest fact that the reader has not read, or 0."""

    blank: ClassVar[str] = ""
    stream: str
    positions: Mapping[str, int]
    position: int = 0
    lag_facts: int = 0
    lag_exact: bool = True
    """False: ``lag_facts`` is an estimate from the difference of IDs."""
    lag_seconds: float = 0.0
    unmoved_seconds: float | None = None
    """For how long its position did not move while watched. None: it was sampled only once."""
    status: Verdict = NO_STATUS
    lag_change_per_second: float | None = None
    """In facts. Above 0: the lag grows. None: not watched long enough."""
    seconds_to_current: float | None = None
    """Seconds until the lag is 0 at the present rate. None: there is no lag, or it does not fall."""
    recent: Series = ()
    """Highest lag in facts in the last five minutes, by steps, oldest first. Empty: there was no lag."""
    error: str = ""
    """Error that stopped a named reader on this stream. It is shown until its cursor moves again."""
    parked_facts: int = 0
    """Number of its dead letters, up to a limit."""
    parked_exact: bool = True
    """False: there are more than ``parked_facts``."""
    parked_since: datetime | None = None
    is_sent: bool = field(default=False, metadata=HIDDEN)
    """True: the position is what was sent to a connection. False: it is what the reader has handled."""
    parked_error: str = field(default="", metadata=HIDDEN)
    retry_waits: bool = field(default=False, metadata=HIDDEN)
    """True: an operator asked to retry dead letters, and no process has begun it."""
    quiet_seconds: float | None = field(default=None, metadata=HIDDEN)
    """Age of the stream's newest fact. None: it has none."""
    went_back_seconds: float | None = field(default=None, metadata=HIDDEN)
    """How long ago its position became lower. None: it never did while watched."""
    waits_for: str = field(default="", metadata=HIDDEN)
    """If a linear reader has read all that it may: who holds the stream back, in words. Empty: nobody."""
    runs: bool = field(default=True, metadata=HIDDEN)
    """False: no living process follows this stream as this named reader, for ``unrun_seconds``."""
    unrun_seconds: float = field(default=0.0, metadata=HIDDEN)
    has_ended: bool = field(default=False, metadata=HIDDEN)
    """True: the process of the named reader ended in order. False: it was killed, or hangs."""
    trimmed_upto: int = field(default=0, metadata=HIDDEN)
    """The ID up to which facts were trimmed that a reader, which does not run, has not read. 0: none were."""
    above: tuple[int, int] | None = field(default=None, metadata=HIDDEN)
    """(its position, the last value of the stream's sequence) if it is above that value, which cannot be right."""


@dataclass(frozen=True, slots=True)
class WaitingView:
    """Data on its way to a reader: commands for its connection, bytes in the kernel's buffers, rows to be handled."""

    lines: int = 0
    kernel_send_bytes: int = 0
    kernel_read_bytes: int = 0
    queued: Mapping[str, int] = field(default_factory=dict)
    """Number of rows by stream that the reader has received and not handled."""


_NOTHING_WAITS = WaitingView()


@dataclass(frozen=True, slots=True)
class RightsView:
    """The rights of a connection's certificate (``REPLSITE_WIRE_RIGHTS``), as patterns. ``*`` allows everything.

    ``refused`` is the number of the connection's commands that were refused. ``refusal`` is the reason for the last one.
    """

    certificate: str
    names: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    refused: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CursorRow:
    """A stored cursor of a named reader on a stream, with its dead letters.

    Also has the last process that ran the reader, and how that process ended.
    """

    reader: str
    stream: str
    base: int
    entries: Mapping[str, int]
    host: str
    process_id: int | None
    seen_at: datetime
    moved_at: datetime
    ended_at: datetime | None
    error: str
    parked_facts: int
    parked_since: datetime | None
    parked_error: str
    retry_waits: bool


@dataclass(slots=True)
class ReaderRow:
    """A reader or connection with the streams that it follows, worst first.

    The positions of a connection are those that were sent to it. The positions of a follower or a Spark query are those
    that it has handled. Readers with equal positions have the same ``positions`` object, in this snapshot and in later ones.
    """

    key: str
    name: str
    kind: str
    served_by: str
    address: str
    process_id: int | None
    connected_at: datetime
    heartbeat_at: datetime
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict, metadata=HIDDEN)
    """``{stream: {writer: position}}``, all positive."""
    bytes_in: int = 0
    bytes_out: int = 0
    lines_in: int = 0
    lines_out: int = 0
    buffer_bytes: int = 0
    ended_at: datetime | None = field(default=None, metadata=HIDDEN)
    close_reason: str = ""
    error: str = field(default="", metadata=HIDDEN)
    """The error that stopped the reader. Empty if the reader runs, or ended without an error."""
    waiting: WaitingView = _NOTHING_WAITS
    rights: RightsView | None = None
    """None: no rule limits it."""
    has_row: bool = True
    """True if it has a row in ``streams_reader``. False if only its cursors are known."""
    cursors: Mapping[str, CursorRow] = field(default_factory=dict, metadata=HIDDEN)
    """Stored cursors of a named reader by stream. Cursors in other databases than that of the streams are not known."""
    runs_on: frozenset[str] = field(default=frozenset(), metadata=HIDDEN)
    """Streams that a running process follows as this named reader."""
    runs: bool = True
    """False for a named reader with stored cursors that no process runs now."""
    closed_at: datetime | None = None
    """When a reader that is not named ended."""
    heartbeat_seconds: float = 0.0
    lag_facts: int = 0
    lag_seconds: float = 0.0
    status: Verdict = NO_STATUS
    streams: tuple[ReaderStreamRow, ...] = ()
    bytes_in_per_second: float | None = None
    bytes_out_per_second: float | None = None
    """Over the last half minute. None: not watched long enough."""
    seconds_to_overflow: float | None = None
    """Seconds until the unsent bytes reach the limit at which a slow connection is closed. None: they do not grow."""

    @property
    def is_named(self) -> bool:
        """True if the reader is a named reader. A named reader is shown until an operator forgets it.

        Its cursors are stored in this database, or in the database to which its handlers write.
        """
        return self.key.startswith(NAMED)

    @property
    def follows(self) -> bool:
        return self.closed_at is None and self.status.word != ReaderWord.NEVER_SEEN

    @property
    def about(self) -> str:
        """The argument of actions on the reader: for a named reader its name, for any other reader its key."""
        return self.key.removeprefix(NAMED)

    @property
    def command(self) -> str:
        """The command that runs it. Empty: ``manage.py runhandlers``."""
        return command_of(self.name)


def read_readers(
    cursor: Any, known: KnownPositions, writers: Mapping[str, Sequence[str]], as_of: datetime, lost_after_seconds: float
) -> list[ReaderRow]:
    """Returns readers, at most ``MOST_READERS`` with a row, and those of as many cursors.

    Those with an error come first, then Spark queries, named ones, others without a connection here, and connections, each open
    ones first. Clients make as many connections as they like, so these come behind others. Of the named ones that have only
    cursors, which are the last, those with an error or dead letters come first, and then those that nobody runs.

    Readers that are not named are left out if their last heartbeat is old or they closed long ago. Spark queries are not,
    because their rows hold trimming back. A named reader whose process was silent for longer than ``lost_after_seconds``
    counts as not running. ``writers`` maps each stream to the names of its writers.

    Positions take much space, and many readers have equal ones. So the query returns hashes first. Positions are read only
    if their hash is not in ``known``, once for each hash. Afterwards ``known`` has the positions of the returned readers.
    """
    cursor.execute(_READERS)
    found = cursor.fetchall()
    keys = {row[_POSITIONS_HASH]: row[0] for row in found}
    if new := [key for number, key in keys.items() if number not in known]:
        cursor.execute(_POSITIONS_OF_READERS, [new])
        known |= {number: _vectors(text) for number, text in cursor.fetchall()}
    for number in known.keys() - keys.keys():
        del known[number]
    cursors: dict[str, dict[str, CursorRow]] = {}
    cursor.execute(_CURSORS)
    for reader, stream, base, entries, *more in cursor.fetchall():
        stored = CursorRow(reader, stream, base, _numbers(decode_stored_json(entries)), *more)
        cursors.setdefault(f"{NAMED}{reader}", {})[stream] = stored
    with collector_paused():
        rows = [_reader(row, known) for row in found]
    has_row = {row.key for row in rows}
    rows += [_without_row(key, by_stream, as_of) for key, by_stream in cursors.items() if key not in has_row]
    for row in rows:
        if row.is_named:
            row.cursors = cursors.get(row.key, row.cursors)
            _merge_cursors(row, writers, as_of, lost_after_seconds)
        else:
            row.closed_at = row.ended_at
    return rows


def _reader(row: Sequence[Any], known: KnownPositions) -> ReaderRow:
    *values, lines, kernel_send, kernel_read, queued, rights = row
    # Missing if the caller's transaction has no fixed snapshot, and the row changed between the two queries.
    values[_POSITIONS_HASH] = known.get(row[_POSITIONS_HASH], {})
    values[1], values[3], values[4] = safe_text(row[1]), safe_text(row[3]), safe_text(row[4])
    is_waiting = lines or kernel_send or kernel_read or queued != "{}"
    sent = (lines, kernel_send, kernel_read)
    waiting = WaitingView(*sent, _numbers(decode_stored_json(queued))) if is_waiting else _NOTHING_WAITS
    values += [waiting, None if rights is None else _rights(decode_stored_json(rights))]
    return ReaderRow(*values)


def _rights(stored: Any) -> RightsView | None:
    if not isinstance(stored, dict):
        return None
    patterns = {kind: tuple(map(str, stored.get(kind, ()))) for kind in ("names", "streams", "reports")}
    refused, refusal = int(stored.get("refused", 0)), str(stored.get("refusal", ""))
    return RightsView(str(stored.get("certificate", "")), **patterns, refused=refused, refusal=refusal)


def _numbers(stored: Any) -> dict[str, int]:
    return {key: n for key, n in stored.items() if isinstance(n, int)} if isinstance(stored, dict) else {}


def _vectors(text: str) -> dict[str, dict[str, int]]:
    stored = decode_stored_json(text)
    if not isinstance(stored, dict):
        return {}
    return {stream: _positive(vector) for stream, vector in stored.items() if isinstance(vector, dict)}


def _positive(vector: dict[str, Any]) -> dict[str, int]:
    # The usual vector is returned as it is: there may be hundreds of thousands of entries.
    if set(map(type, vector.values())) == {int} and min(vector.values()) >= 0:
        return vector
    return {writer: abs(at) for writer, at in vector.items() if isinstance(at, int)}


def _without_row(key: str, cursors: Mapping[str, CursorRow], as_of: datetime) -> ReaderRow:
    last = min(cursors.values(), key=lambda cursor: silent_seconds(as_of, cursor.seen_at))
    return ReaderRow(
        key=key, name=safe_text(last.reader), kind="follower", served_by="", process_id=last.process_id,
        address=safe_text(f"{last.host}:{last.process_id}" if last.process_id else last.host),
        connected_at=last.moved_at, heartbeat_at=last.seen_at, ended_at=last.ended_at, has_row=False,
    )  # fmt: skip


def _merge_cursors(
    row: ReaderRow, writers: Mapping[str, Sequence[str]], as_of: datetime, lost_after_seconds: float
) -> None:
    cursors = row.cursors
    # Not max(): after the clock was set back, one of the times may lie in the future.
    times: Iterable[datetime] = (row.heartbeat_at, *(cursor.seen_at for cursor in cursors.values()))
    row.heartbeat_at = min(times, key=lambda at: silent_seconds(as_of, at))
    if cursors:
        ended = [cursor.ended_at for cursor in cursors.values() if cursor.ended_at is not None]
        # Some cursors have ended and others have not. Then a process took the name again after one of them was reset.
        row.ended_at = max(ended) if len(ended) == len(cursors) else None
    row.runs = row.ended_at is None and silent_seconds(as_of, row.heartbeat_at) <= lost_after_seconds
    positions = dict(row.positions) if row.runs or not cursors else {}
    for stream, cursor in cursors.items():
        if not (row.runs and positions.get(stream)):
            # In one order, so that equal vectors of readers are found equal.
            names = dict.fromkeys((*writers.get(stream, ()), *cursor.entries))
            positions[stream] = {name: max(cursor.base, cursor.entries.get(name, 0)) for name in names}
    # A process that just started has not written its positions yet. Until then its cursors tell which streams it follows.
    row.runs_on = frozenset(row.positions or positions) if row.runs else frozenset()
    row.positions = positions
    row.runs = bool(row.runs_on)


def _who(reader: ReaderRow) -> Cell:
    kind = "named in REPLSITE_READERS" if reader.status.word == ReaderWord.NEVER_SEEN else reader.kind
    process = f"process {reader.process_id}" if reader.process_id else ""
    follows = counted(len(reader.streams), "stream") if reader.streams else ""
    refused = f"{counted(reader.rights.refused, 'command')} refused" if reader.rights and reader.rights.refused else ""
    about = (kind, reader.address, process, follows, refused)
    return text_cell(reader.name, joined(*about))


def _position(on: ReaderStreamRow) -> Cell:
    lowest = "lowest of " + counted(len(on.positions), "writer") if len(on.positions) > 1 else ""
    return text_cell(count(on.position), joined("sent" if on.is_sent else "handled", lowest))


def _lag(row: ReaderRow | ReaderStreamRow, streams: Sequence[ReaderStreamRow]) -> Cell:
    cell = lag_cell(row.lag_facts, row.lag_seconds, all(on.lag_exact for on in streams))
    if parked := sum(on.parked_facts for on in streams):
        more = "" if all(on.parked_exact for on in streams) else "more than "
        cell["sub"] = joined(cell.get("sub", ""), f"{more}{count(parked)} parked")
    return cell


def _trend(streams: Sequence[ReaderStreamRow]) -> Cell:
    lagging = [view for view in streams if view.lag_facts]
    changes = [view.lag_change_per_second for view in lagging if view.lag_change_per_second is not None]
    ends = [view.seconds_to_current for view in lagging]
    soon = [end for end in ends if end is not None]
    # The lag ends when the slowest stream is current. If the end is unknown for one of them, none is shown.
    until = f"current in {duration(max(soon))}" if soon and len(soon) == len(ends) else ""
    cell = text_cell(_movement(sum(changes)) if changes else NOTHING, until)
    if any(view.recent for view in streams):
        cell["series"] = rounded(summed([view.recent for view in streams if view.recent]))
    return cell


def _movement(change: float) -> str:
    if abs(change) < 0.05:
        return "steady"
    return f"falls {per_second(-change)}" if change < 0 else f"grows {per_second(change)}"


def _sent(reader: ReaderRow) -> Cell:
    if not reader.bytes_out and not reader.bytes_in:
        return text_cell(NOTHING)
    if reader.bytes_out_per_second is None or reader.bytes_in_per_second is None:
        return text_cell(f"{byte_size(reader.bytes_out)} out", f"{byte_size(reader.bytes_in)} in")
    out, into = round(reader.bytes_out_per_second), round(reader.bytes_in_per_second)
    return text_cell(f"{byte_size(out)}/s out", f"{byte_size(into)}/s in · {byte_size(reader.bytes_out)} sent")


def _unsent(reader: ReaderRow) -> Cell:
    left = reader.seconds_to_overflow
    return text_cell(
        byte_size(reader.buffer_bytes) if reader.buffer_bytes else NOTHING,
        f"full in {duration(left)}" if left is not None else "",
    )


READERS = Table(
    "Readers and connections",
    "Who follows, and how far behind: what was sent to a connection, what a follower has handled.",
    "No followers. Try: manage.py follow tcp://HOST:PORT",
    (
        Column("Reader and stream", {ReaderRow: _who, ReaderStreamRow: lambda on: on.stream}, number=False),
        Column("Position", {
            ReaderRow: lambda reader: _position(reader.streams[0]) if reader.follows and len(reader.streams) == 1 else NOTHING,
            ReaderStreamRow: _position,
        }),
        Column("Lag", {
            ReaderRow: lambda reader: _lag(reader, reader.streams) if reader.follows else NOTHING,
            ReaderStreamRow: lambda on: _lag(on, [on]),
        }),
        Column("Trend", {
            ReaderRow: lambda reader: _trend(reader.streams) if reader.follows else NOTHING,
            ReaderStreamRow: lambda on: _trend([on]),
        }),
        Column("In and out", {ReaderRow: _sent}),
        Column("Unsent", {ReaderRow: lambda reader: _unsent(reader) if reader.follows else NOTHING}),
        Column("Connected", {
            ReaderRow: lambda reader: (
                moment_cell(reader.connected_at) if reader.closed_at or (reader.follows and reader.runs) else NOTHING
            ),
        }),
    ),
    has_menu=True,
)  # fmt: skip


def reader_groups(readers: Sequence[ReaderRow], *, is_whole: bool = False) -> list[Group]:
    """Returns a group for each reader.

    There is one limit for readers with a problem, one for fine readers and one for closed readers. If a limit leaves readers
    out, a further group gives their number. With ``is_whole``, there are no limits.
    """
    if is_whole:
        return [_reader_group(reader) for reader in readers]
    closed = sorted((r for r in readers if r.closed_at), key=lambda r: r.closed_at or r.heartbeat_at, reverse=True)
    bad = [r for r in readers if r.closed_at is None and r.status.severity >= Severity.WARNING]
    fine = [r for r in readers if r.closed_at is None and r.status.severity < Severity.WARNING]
    left_out = {
        "bad": bad[BAD_READERS_SHOWN:],
        "fine": fine[FINE_READERS_SHOWN:],
        "closed": closed[CLOSED_READERS_SHOWN:],
    }
    hidden = {reader.key for found in left_out.values() for reader in found}
    groups = [_reader_group(reader) for reader in readers if reader.key not in hidden]
    return groups + [_more_readers(name, found) for name, found in left_out.items() if found]


_LEFT_OUT = {"bad": "that need a look", "fine": "that are fine", "closed": "that closed a short while ago"}


def _more_readers(name: str, left_out: Sequence[ReaderRow]) -> Group:
    # The group's key begins with a newline, as no reader's key does.
    cell = text_cell(f"and {count(len(left_out))} more {_LEFT_OUT[name]}")
    severity = left_out[0].status.severity if name == "bad" else Severity.FINE
    status = Verdict(
        "gone" if name == "closed" else "", severity, "manage.py streams --json has all." * (name == "bad")
    )
    return {"key": f"\nmore {name}", "head": READERS.remark("", cell, status), "rows": []}


def _reader_group(reader: ReaderRow) -> Group:
    page = quoted_key(reader.key) if reader.has_row else ""
    if reader.closed_at is not None:  # its streams do not matter any more; the row shows why it closed
        head = READERS.row(reader, admin_id=page, about=reader.about)
        return {"key": reader.key, "head": head, "rows": _rights_rows(reader)}
    if not reader.follows:
        return {"key": reader.key, "head": READERS.row(reader), "rows": []}
    on = f"{reader.streams[0].stream}: " if reader.streams else ""
    rows = [
        # A row has the actions of its status, unless the first row of the group has the same.
        READERS.row(row, row.stream, about="" if row.status.actions == reader.status.actions else reader.about)
        for row in reader.streams
    ]
    head = READERS.head(reader, on + reader.status.sentence, page, reader.about)
    return {"key": reader.key, "head": head, "rows": [*rows, *_rights_rows(reader)]}


def _rights_rows(reader: ReaderRow) -> list[Row]:
    rights = reader.rights
    if rights is None:
        return []
    allowed = (
        _allowed("calls itself", rights.names, "nothing"),
        _allowed("follows", rights.streams, "no stream"),
        _allowed("reports", rights.reports, "nothing"),
    )
    status = NO_STATUS
    if rights.refused:
        why = f"{counted(rights.refused, 'command')} refused, the last one because {rights.refusal}."
        status = Verdict("", Severity.NOTE, why)
    name = text_cell(f"Rights of certificate {safe_text(rights.certificate)}", joined(*allowed))
    return [READERS.remark(_RIGHTS_KEY, name, status)]


def _allowed(does: str, patterns: Sequence[str], nothing: str) -> str:
    allowed = "anything" if "*" in patterns else ", ".join(patterns) or nothing
    return f"{does} {safe_text(allowed)}"
