"""The streams of a Synapse server: sequences, tables and stored positions, and the verdict on them (pure but for the queries).

The rule is that of ``check_streams`` (``streams.core.sequences.behind``): a sequence must be at or above the highest ID in
its tables, and at or above every stored position. Otherwise the server does not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.doctor.report import Finding, Reason, StreamState
from streams.core.sequences import behind

__all__ = ["COLUMNS_OF_STREAMS", "stream_findings", "stream_states"]


class Queries(Protocol):
    """The snapshot in which streams are examined (``ServerDatabase``)."""

    left_out: list[str]

    def rows(
        self, subject: str, tables: Sequence[str], sql: str, values: Sequence[Any] | None = None
    ) -> list[Any] | None: ...
    def exists(self, table: str, column: str) -> bool: ...
    def readable(self, table: str, column: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A sequence and the columns whose values it gives out. ``positions``: its name in ``stream_positions``."""

    name: str
    sequence: str
    columns: Sequence[tuple[str, str]]
    positions: str | None = None
    is_backward: bool = False


def _stream(name: str, sequence: str, *columns: str) -> _Numbers:
    pairs = [tuple(column.split(".")) for column in columns]
    return _Numbers(name, sequence, [(table, column) for table, column in pairs], name)


_NUMBERS = (
    _stream("events", "events_stream_seq", "events.stream_ordering"),
    _Numbers("backfill", "events_backfill_stream_seq", (("events", "stream_ordering"),), "backfill", is_backward=True),
    _stream("caches", "cache_invalidation_stream_seq", "cache_invalidation_stream_by_instance.stream_id"),
    _stream("receipts", "receipts_sequence", "receipts_linearized.stream_id"),
    _stream(
        "account_data", "account_data_sequence",
        "room_account_data.stream_id", "room_tags_revisions.stream_id", "account_data.stream_id",
    ),
    _stream("to_device", "device_inbox_sequence", "device_inbox.stream_id", "device_federation_outbox.stream_id"),
    _stream("presence_stream", "presence_stream_sequence", "presence_stream.stream_id"),
    _stream(
        "device_lists_stream", "device_lists_sequence",
        "device_lists_stream.stream_id", "user_signature_stream.stream_id", "device_lists_outbound_pokes.stream_id",
        "device_lists_changes_in_room.stream_id", "device_lists_remote_pending.stream_id",
    ),
    _stream("push_rules_stream", "push_rules_stream_sequence", "push_rules_stream.stream_id"),
    _stream("pushers", "pushers_sequence", "pushers.id", "deleted_pushers.stream_id"),
    _stream("e2e_cross_signing_keys", "e2e_cross_signing_keys_sequence", "e2e_cross_signing_keys.stream_id"),
    _stream(
        "un_partial_stated_room_stream", "un_partial_stated_room_stream_sequence",
        "un_partial_stated_room_stream.stream_id",
    ),
    _stream(
        "un_partial_stated_event_stream", "un_partial_stated_event_stream_sequence",
        "un_partial_stated_event_stream.stream_id",
    ),
    _stream("thread_subscriptions", "thread_subscriptions_sequence", "thread_subscriptions.stream_id"),
    _stream("sticky_events", "sticky_events_sequence", "sticky_events.stream_id"),
    _stream("quarantined_media", "quarantined_media_id_seq"),
    _Numbers("state groups", "state_group_id_seq", (("state_groups", "id"),)),
    _Numbers("auth chains", "event_auth_chain_id", (("event_auth_chains", "chain_id"),)),
    _Numbers("application services", "application_services_txn_id_seq", (("application_services_txns", "txn_id"),)),
)  # fmt: skip
COLUMNS_OF_STREAMS: Mapping[str, Sequence[str]] = {
    table: tuple(dict.fromkeys(c for numbers in _NUMBERS for t, c in numbers.columns if t == table))
    for numbers in _NUMBERS
    for table, _ in numbers.columns
}
"""Table -> the columns that hold IDs of sequences."""
_SEQUENCES = """
SELECT c.relname::text, CASE WHEN has_sequence_privilege(c.oid, 'SELECT') THEN pg_sequence_last_value(c.oid) END,
       has_sequence_privilege(c.oid, 'SELECT'), c.oid::regclass::text
FROM pg_class c WHERE c.relkind = 'S' AND c.relname = ANY (%s) AND pg_table_is_visible(c.oid)
"""
_UNUSED = "SELECT last_value - 1 FROM {sequence}"
_POSITIONS = """
SELECT stream_name, instance_name, stream_id FROM stream_positions WHERE stream_id IS NOT NULL ORDER BY 1, 2
"""
_OK, _UNKNOWN, _COUNTED = "ok", "not compared", "counted from its table"


def stream_states(database: Queries) -> list[StreamState]:
    """Returns the state of each stream that this version has."""
    stored: dict[str, dict[str, int]] = {}
    for stream, writer, position in database.rows("stored positions", ("stream_positions",), _POSITIONS) or ():
        stored.setdefault(stream, {})[writer] = abs(position)
    highest = {numbers.name: _highest(database, numbers) for numbers in _NUMBERS}
    # Sequences come last. They are not part of the snapshot, and only rise: so a live server's are never below its tables.
    wanted = [numbers.sequence for numbers in _NUMBERS]
    found = {
        name: (value, may, sql) for name, value, may, sql in database.rows("sequences", (), _SEQUENCES, [wanted]) or ()
    }
    states = [
        _state(database, numbers, found, highest[numbers.name], stored.pop(numbers.positions or "", {}))
        for numbers in _NUMBERS
        if numbers.sequence in found or highest[numbers.name] is not None
    ]
    others = [
        StreamState(stream, "", None, None, max(writers.values()), writers, _UNKNOWN)
        for stream, writers in sorted(stored.items())
    ]
    return states + others


def _highest(database: Queries, numbers: _Numbers) -> int | None:
    values = []
    for table, column in numbers.columns:
        if not database.exists(table, column):
            continue  # this version has it not
        largest = f"max(-{column})" if numbers.is_backward else f"max({column})"
        if not database.readable(table, column):
            database.left_out.append(
                f"highest ID of {table}: the role may not read it: GRANT SELECT ({column}) ON {table}"
            )
            return None
        rows = database.rows(f"highest ID of {table}", (), f"SELECT coalesce({largest}, 0) FROM {table}")
        if rows is None:
            return None
        values.append(max(int(rows[0][0]), 0))
    return max(values, default=None)


def _state(
    database: Queries,
    numbers: _Numbers,
    found: Mapping[str, tuple[int | None, bool, str]],
    in_tables: int | None,
    writers: Mapping[str, int],
) -> StreamState:
    highest = max(writers.values(), default=None)
    if numbers.sequence not in found:  # older versions count the IDs of some streams in their one writer's memory
        return StreamState(numbers.name, "", None, in_tables, highest, writers, _COUNTED)
    value, may, sql = found[numbers.sequence]
    if may and value is None:  # it has given out nothing yet
        rows = database.rows(f"sequence {numbers.sequence}", (), _UNUSED.format(sequence=sql))
        value = int(rows[0][0]) if rows else None
    if value is None:
        database.left_out.append(f"sequence {sql}: the role may not read it: GRANT SELECT ON SEQUENCE {sql}")
        return StreamState(numbers.name, sql, None, in_tables, highest, writers, _UNKNOWN)
    verdict = behind(value, in_tables or 0, highest or 0, 0)
    fix = _fix(database, numbers, sql, highest) if verdict else ""
    return StreamState(numbers.name, sql, value, in_tables, highest, writers, verdict or _OK, fix)


def _fix(database: Queries, numbers: _Numbers, sequence: str, stored: int | None) -> str:
    sign = "-min" if numbers.is_backward else "max"
    tables = [
        f"(SELECT {sign}({column}) FROM {table})" for table, column in numbers.columns if database.exists(table, column)
    ]
    wanted = ", ".join([*tables, str(stored or 1)])
    return f"SELECT setval('{sequence}', greatest({wanted}));"


def stream_findings(states: Sequence[StreamState]) -> Iterator[Finding]:
    """Yields a finding for each sequence that is behind."""
    for state in states:
        if not state.fix:
            continue
        is_table = state.verdict == "behind table"
        reason = Reason.SEQUENCE_BEHIND_TABLE if is_table else Reason.SEQUENCE_BEHIND_POSITION
        other = (
            f"its tables have IDs up to {state.in_tables:,}" if is_table else f"a position {state.stored:,} is stored"
        )
        text = (
            f"The sequence {state.sequence} of {state.stream} is at {state.value:,}, but {other}: Synapse refuses to start "
            f"(\"Postgres sequence '{state.sequence}' is inconsistent with …\"), or gives out IDs that are taken."
        )
        yield Finding(
            reason,
            state.stream,
            text,
            f"Stop the server and all its workers, then run: {state.fix}",
            stored=str(state.value),
            computed=str(max(state.in_tables or 0, state.stored or 0)),
            rule="a sequence is at or above all IDs in its tables, and all stored positions",
        )
