"""Reads state groups from the database.

A filter (``state.groups.filters``) becomes part of the query, so only wanted entries are sent. Each function reads by
one query, hence in one snapshot. The functions use the connection of the given alias, and the caller's transaction if
one is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connections

from state.errors import UnknownStateGroup
from state.group_ids import reserve_group_ids
from state.groups.deltas import StateKey
from state.groups.filters import EVERYTHING, StateFilter
from state.models import StateGroup
from streams.db.driver import rows_of_repeated

__all__ = [
    "FULL_STATE",
    "ONE_BY_ONE",
    "State",
    "StateDigest",
    "changes_from",
    "entries",
    "full_state",
    "full_states",
    "reserve_group_ids",
    "state_digest",
]

State = dict[StateKey, str]

#: Up to this number of keys, each key is looked up separately, and its walk ends at the first hit. More keys are read
#: in one pass.
ONE_BY_ONE = 4

#: The chains below a group (``state.groups.deltas.HOPS_LIMIT`` at most). ``upto`` is the last group of a chain that
#: belongs to the state.
_SPANS = """
WITH RECURSIVE spans AS (
    SELECT chain, id AS upto FROM state_stategroup WHERE id = %(group)s
    UNION ALL
    SELECT below.chain, below.id FROM spans, state_stategroup AS below
    WHERE below.id = (SELECT prev_group FROM state_stategroup WHERE id = spans.chain)
)"""

#: The entries of a group. One index range is read for each chain, and for each key the row of the highest group wins. A
#: null event means that the key was removed. The planner cannot estimate the number of chains; ``OFFSET 0`` keeps it
#: from reading the whole table. State keys are sorted before types, because two of them usually differ in their first
#: characters.
_FILTERED = (
    _SPANS
    + """
SELECT DISTINCT ON (state_key, type) type, state_key, event_id
FROM spans, LATERAL (
    SELECT type, state_key, event_id, state_group FROM state_stategroupdelta AS delta
    WHERE delta.chain = spans.chain AND delta.state_group <= spans.upto {condition}
    OFFSET 0
) AS read
ORDER BY state_key, type, state_group DESC"""
)
FULL_STATE = _FILTERED.format(condition="")
#: The same query without a filter, as a database function that is planned once in each session (migration 0003).
_FULL_STATE_PLANNED = "SELECT type, state_key, event_id FROM state_full_state(%(group)s)"

#: The digest of a state, computed without sending the state. Equal digests mean equal states.
_DIGEST = f"""
SELECT EXISTS (SELECT FROM state_stategroup WHERE id = %(group)s), count(event_id), encode(sha256(convert_to(coalesce(
    string_agg(ROW(type, state_key, event_id)::text, '' ORDER BY state_key, type)
    FILTER (WHERE event_id IS NOT NULL), ''), 'UTF8')), 'hex')
FROM ({FULL_STATE}) AS entry
"""

#: The newest entry of a chain at one key: one row of the index ``state_stategroupdelta_key``, read backwards.
_HIT = """
    SELECT state_group, event_id FROM state_stategroupdelta AS delta
    WHERE delta.chain = {group}.chain AND delta.state_group <= {group}.id
      AND delta.type = {key}.type AND delta.state_key = {key}.state_key
    ORDER BY delta.state_group DESC LIMIT 1
"""
#: The entries of some groups at a few keys. Each key is searched from chain to chain until it is found.
_AT = f"""
WITH RECURSIVE walk AS (
    SELECT own.id AS wanted, own.chain, key.type, key.state_key, hit.state_group, hit.event_id
    FROM {{asked}}
    LEFT JOIN LATERAL ({_HIT.format(group="own", key="key")}) AS hit ON true
    UNION ALL
    SELECT walk.wanted, below.chain, walk.type, walk.state_key, hit.state_group, hit.event_id
    FROM walk
    JOIN state_stategroup AS below ON below.id = (SELECT prev_group FROM state_stategroup WHERE id = walk.chain)
    LEFT JOIN LATERAL ({_HIT.format(group="below", key="walk")}) AS hit ON true
    WHERE walk.state_group IS NULL
)
SELECT wanted, type, state_key, event_id FROM walk WHERE event_id IS NOT NULL
"""
_AT_KEYS = _AT.format(
    asked="""unnest(%(groups)s::bigint[]) AS asked (id) JOIN state_stategroup AS own USING (id)
    CROSS JOIN unnest(%(types)s::text[], %(keys)s::text[]) AS key (type, state_key)"""
)
#: The same, with one key for each group.
_AT_ITS_KEY = _AT.format(
    asked="""unnest(%(groups)s::bigint[], %(types)s::text[], %(keys)s::text[]) AS key (id, type, state_key)
    JOIN state_stategroup AS own USING (id)"""
)

_SPANS_OF_MANY = """
WITH RECURSIVE spans AS (
    SELECT id AS wanted, chain, id AS upto FROM state_stategroup WHERE id = ANY(%(groups)s)
    UNION ALL
    SELECT spans.wanted, below.chain, below.id FROM spans, state_stategroup AS below
    WHERE below.id = (SELECT prev_group FROM state_stategroup WHERE id = spans.chain)
)
"""
#: Several groups at once: first one row for each of their chains, then the delta rows of these chains. A delta row is
#: sent once, even if several groups need it.
_MANY = f"""
{_SPANS_OF_MANY}, chains AS (
    SELECT chain, max(upto) AS upto FROM spans GROUP BY chain
)
SELECT wanted, chain, upto AS state_group, NULL AS type, NULL AS state_key, NULL AS event_id FROM spans
UNION ALL
SELECT NULL, chains.chain, read.* FROM chains, LATERAL (
    SELECT state_group, type, state_key, event_id FROM state_stategroupdelta AS delta
    WHERE delta.chain = chains.chain AND delta.state_group <= chains.upto {{condition}}
    OFFSET 0
) AS read
"""


_SPANS_ALONE = f"{_SPANS_OF_MANY} SELECT wanted, chain, upto FROM spans"
_MOST_TOUCHED = 1_000
#: The keys of the delta rows in some ranges of chains, ``_MOST_TOUCHED`` rows of each at most.
_TOUCHED = f"""
SELECT asked.wanted, asked.chain, read.type, read.state_key
FROM unnest(%(wanted)s::bigint[], %(chains)s::bigint[], %(above)s::bigint[], %(upto)s::bigint[])
    AS asked (wanted, chain, above, upto), LATERAL (
    SELECT delta.type, delta.state_key FROM state_stategroupdelta AS delta
    WHERE delta.chain = asked.chain AND delta.state_group > asked.above AND delta.state_group <= asked.upto
    LIMIT {_MOST_TOUCHED}
) AS read
"""


def full_state(group: int, using: str = "default", only: StateFilter = EVERYTHING) -> State:
    """Returns the entries of a group's state that ``only`` accepts, ``(type, state_key) -> event_id``.

    Raises ``UnknownStateGroup``.
    """
    if only.is_keys_only and len(only.keys) <= ONE_BY_ONE:
        return _entries_of_stored([group], only.keys, using)[group]
    condition, values = _condition(only)
    query = _FILTERED.format(condition=condition) if condition else _FULL_STATE_PLANNED
    with connections[using].cursor() as cursor:
        cursor.execute(query, {"group": group, **values})
        found = {(event_type, state_key): event_id for event_type, state_key, event_id in cursor.fetchall()}
    if None in found.values():
        found = {key: event_id for key, event_id in found.items() if event_id is not None}
    if not found and not StateGroup.objects.using(using).filter(pk=group).exists():
        raise _unknown(group)
    return found


def full_states(groups: Iterable[int], using: str = "default", only: StateFilter = EVERYTHING) -> dict[int, State]:
    """Returns ``{group: state}`` with those entries of each state that ``only`` accepts.

    Raises ``UnknownStateGroup``.

    All states are in memory at the same time. So callers split many groups of large rooms over several calls.
    """
    wanted = sorted(set(groups))
    if not wanted:
        return {}
    if only.is_keys_only and len(only.keys) <= ONE_BY_ONE:
        return _entries_of_stored(wanted, only.keys, using)
    condition, values = _condition(only)
    ends: dict[int, dict[int, int]] = {}
    rows: dict[int, list[tuple[int, StateKey, str | None]]] = {}
    with connections[using].cursor() as cursor:
        cursor.execute(_MANY.format(condition=condition), {"groups": wanted, **values})
        for of_group, chain, group, event_type, state_key, event_id in cursor.fetchall():
            if of_group is None:
                rows.setdefault(chain, []).append((group, (event_type, state_key), event_id))
            else:
                ends.setdefault(of_group, {})[chain] = group
    for group in wanted:
        if group not in ends:
            raise _unknown(group)
    return _states_of_chains(ends, rows)


def changes_from(known: int, groups: Collection[int], using: str = "default") -> dict[int, dict[StateKey, str | None]]:
    """Returns ``{group: changes from the state of known to its state}``: key -> event ID, or None.

    Reads only the delta rows in which two groups differ. The result lacks groups with too many such rows, and groups
    that share no rows with ``known``. The queries are planned once in each session.
    """
    spans: dict[int, dict[int, int]] = {}
    for group, chain, upto in rows_of_repeated(connections[using], _SPANS_ALONE, {"groups": [known, *groups]}):
        spans.setdefault(group, {})[chain] = upto
    known_spans = spans.pop(known, {})
    spans = {group: its for group, its in spans.items() if not known_spans.keys().isdisjoint(its)}
    ranges = [
        (group, chain, *sorted((known_spans.get(chain, -1), its.get(chain, -1))))
        for group, its in spans.items()
        for chain in {*known_spans, *its}
        if known_spans.get(chain) != its.get(chain)
    ]
    touched: dict[int, set[StateKey]] = {group: set() for group in spans}
    rows: Counter[tuple[int, int]] = Counter()
    if ranges:
        wanted, chains, above, upto = map(list, zip(*ranges, strict=True))
        values = {"wanted": wanted, "chains": chains, "above": above, "upto": upto}
        for group, chain, event_type, state_key in rows_of_repeated(connections[using], _TOUCHED, values):
            rows[group, chain] += 1
            touched[group].add((event_type, state_key))
    for group in {group for (group, _), count in rows.items() if count >= _MOST_TOUCHED}:
        del touched[group]  # there may be more rows
    found: dict[int, dict[StateKey, str | None]] = {
        group: dict.fromkeys(sorted(keys)) for group, keys in touched.items()
    }
    pairs = [(group, *key) for group, changes in found.items() for key in changes]
    if pairs:
        wanted, types, state_keys = map(list, zip(*pairs, strict=True))
        values = {"groups": wanted, "types": types, "keys": state_keys}
        for group, event_type, state_key, event_id in rows_of_repeated(connections[using], _AT_ITS_KEY, values):
            found[group][event_type, state_key] = event_id
    return found


class StateDigest(NamedTuple):
    entries: int
    sha256: str


def state_digest(group: int, using: str = "default") -> StateDigest | None:
    """Returns the digest of a group's state, computed by the database, or None if the group is not stored."""
    with connections[using].cursor() as cursor:
        cursor.execute(_DIGEST, {"group": group})
        is_stored, *found = cursor.fetchone()
    return StateDigest(*found) if is_stored else None


def entries(
    groups: Collection[int], keys: Collection[StateKey], using: str = "default", *, planned_once: bool = False
) -> dict[int, State]:
    """Returns ``{group: {key: event ID}}`` at these keys. A group that is not stored has an empty dictionary.

    ``planned_once``: a session that repeats the query plans it once, which saves more time than reading a few keys takes.
    """
    found: dict[int, State] = {group: {} for group in groups}
    sought = _storable_keys(keys)
    types, state_keys = [key[0] for key in sought], [key[1] for key in sought]
    values: dict[str, Any] = {"groups": list(found), "types": types, "keys": state_keys}
    if planned_once:
        rows = rows_of_repeated(connections[using], _AT_KEYS, values)
    else:
        with connections[using].cursor() as cursor:
            cursor.execute(_AT_KEYS, values)
            rows = cursor.fetchall()
    for group, event_type, state_key, event_id in rows:
        found[group][event_type, state_key] = event_id
    return found


def _entries_of_stored(groups: Collection[int], keys: Collection[StateKey], using: str) -> dict[int, State]:
    found = entries(groups, keys, using)
    without = {group for group, state in found.items() if not state}
    if without:
        stored = StateGroup.objects.using(using).filter(pk__in=without).values_list("pk", flat=True)
        for group in sorted(without.difference(stored)):
            raise _unknown(group)
    return found


# --- filters ----------------------------------------------------------------------------------------------------------


def _condition(only: StateFilter) -> tuple[str, dict[str, list[str]]]:
    if only.is_everything:
        return "", {}
    keys = _storable_keys(only.keys)
    parts = ["delta.type = ANY(%(whole_types)s::text[])"]
    values = {"whole_types": _storable(only.types)}
    if keys:
        parts.append("(delta.type, delta.state_key) IN (SELECT * FROM unnest(%(types)s::text[], %(keys)s::text[]))")
        values |= {"types": [key[0] for key in keys], "keys": [key[1] for key in keys]}
    if only.all_but is not None:
        parts.append("delta.type <> ALL(%(all_but)s::text[])")
        values["all_but"] = _storable(only.all_but)
    return f"AND ({' OR '.join(parts)})", values


def _storable(values: Iterable[str]) -> list[str]:
    # other values occur in no stored entry
    return sorted(value for value in values if _can_be_stored(value))


def _storable_keys(keys: Collection[StateKey]) -> list[StateKey]:
    return sorted(key for key in keys if _can_be_stored(key[0]) and _can_be_stored(key[1]))


def _can_be_stored(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)


# --- several groups ---------------------------------------------------------------------------------------------------


def _states_of_chains(
    ends: Mapping[int, Mapping[int, int]], rows: Mapping[int, list[tuple[int, StateKey, str | None]]]
) -> dict[int, State]:
    """Returns the states of groups. ``ends`` maps each to ``{chain that it builds on: last group to read there}``."""
    base_of_chain: dict[int, int | None] = {}
    ends_in_chain: dict[int, set[int]] = {}
    for of_group in ends.values():
        descending = sorted(of_group.items(), reverse=True)
        for (chain, end), (_, base) in zip(descending, [*descending[1:], (0, None)], strict=True):
            base_of_chain[chain] = base
            ends_in_chain.setdefault(chain, set()).add(end)
    at: dict[int | None, State] = {None: {}}
    # Ascending: a chain builds on a group of a chain with a lower ID, whose state is known by then.
    for chain in sorted(ends_in_chain):
        state = dict(at[base_of_chain[chain]])
        unread = sorted(rows.get(chain, ()), key=itemgetter(0), reverse=True)
        for end in sorted(ends_in_chain[chain]):
            while unread and unread[-1][0] <= end:
                _, key, event_id = unread.pop()
                if event_id is not None:
                    state[key] = event_id
                else:
                    state.pop(key, None)
            at[end] = dict(state)
    return {group: at[group] for group in ends}


def _unknown(group: int) -> UnknownStateGroup:
    return UnknownStateGroup(f"State group {group} is not stored: it was deleted, or its room never was complete.")
