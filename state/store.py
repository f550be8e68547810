"""Reads state groups from the database.

A filter (``state.groups.filters``) becomes part of the query, so only wanted entries are sent. Each function reads by
one query, hence in one snapshot. The functions use the connection of the given alias, and the caller's transaction if
one is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connections

from state.errors import UnknownStateGroup
from state.group_ids import reserve_group_ids
from state.groups.deltas import StateKey
from state.groups.filters import EVERYTHING, StateFilter
from state.models import StateGroup

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

#: Several groups at once: first one row for each of their chains, then the delta rows of these chains. A delta row is
#: sent once, even if several groups need it.
_MANY = """
WITH RECURSIVE spans AS (
    SELECT id AS wanted, chain, id AS upto FROM state_stategroup WHERE id = ANY(%(groups)s)
    UNION ALL
    SELECT spans.wanted, below.chain, below.id FROM spans, state_stategroup AS below
    WHERE below.id = (SELECT prev_group FROM state_stategroup WHERE id = spans.chain)
), chains AS (
    SELECT chain, max(upto) AS upto FROM spans GROUP BY chain
)
SELECT wanted, chain, upto AS state_group, NULL AS type, NULL AS state_key, NULL AS event_id FROM spans
UNION ALL
SELECT NULL, chains.chain, read.* FROM chains, LATERAL (
    SELECT state_group, type, state_key, event_id FROM state_stategroupdelta AS delta
    WHERE delta.chain = chains.chain AND delta.state_group <= chains.upto {condition}
    OFFSET 0
) AS read
"""


_MOST_TOUCHED = 1_000
_SPANS_OF_MANY = """
WITH RECURSIVE spans AS (
    SELECT id AS wanted, chain, id AS upto FROM state_stategroup WHERE id = ANY(%(groups)s)
    UNION ALL
    SELECT spans.wanted, below.chain, below.id FROM spans, state_stategroup AS below
    WHERE below.id = (SELECT prev_group FROM state_stategroup WHERE id = spans.chain)
)
SELECT wanted, chain, upto FROM spans
"""
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
    state = _one_pass(group, only, using)
    if not state and not StateGroup.objects.using(using).filter(pk=group).exists():
        raise _unknown(group)
    return state


def full_states(groups: Iterable[int], using: str = "default", only: StateFilter = EVERYTHING) -> dict[int, State]:
    """Returns ``{group: state}`` with those entries of each state that ``only`` accepts. Raises ``UnknownStateGroup``.

    If ``only`` names a few keys, each key is looked up separately. Otherwise one query reads each delta row once. All
    states are in memory at the same time. So callers split many groups of large rooms over several calls.
    """
    wanted = sorted(set(groups))
    if not wanted:
        return {}
    if only.is_keys_only and len(only.keys) <= ONE_BY_ONE:
        return _entries_of_stored(wanted, only.keys, using)
    condition, values = _condition(only)
    found = _Chains()
    with connections[using].cursor() as cursor:
        cursor.execute(_MANY.format(condition=condition), {"groups": wanted, **values})
        for row in cursor.fetchall():
            found.take(row)
    for group in wanted:
        if group not in found:
            raise _unknown(group)
    return found.states()


def changes_from(known: int, groups: Collection[int], using: str = "default") -> dict[int, dict[StateKey, str | None]]:
    """Returns ``{group: changes}``: the changes that lead from the state of the group ``known`` to the state of each group.

    Changes map keys to event IDs, or to null where the group has no entry. Reads only the delta rows in which two
    groups differ. The result lacks groups with too many such rows, and groups that share no rows with ``known``.
    """
    spans: dict[int, dict[int, int]] = {}
    with connections[using].cursor() as cursor:
        cursor.execute(_SPANS_OF_MANY, {"groups": [known, *groups]})
        for group, chain, upto in cursor.fetchall():
            spans.setdefault(group, {})[chain] = upto
        own = spans.pop(known, {})
        spans = {group: its for group, its in spans.items() if not own.keys().isdisjoint(its)}
        ranges = [
            (group, chain, *sorted((own.get(chain, -1), its.get(chain, -1))))
            for group, its in spans.items()
            for chain in {*own, *its}
            if own.get(chain) != its.get(chain)
        ]
        touched: dict[int, set[StateKey]] = {group: set() for group in spans}
        rows: Counter[tuple[int, int]] = Counter()
        if ranges:
            wanted, chains, above, upto = map(list, zip(*ranges, strict=True))
            values = {"wanted": wanted, "chains": chains, "above": above, "upto": upto}
            cursor.execute(_TOUCHED, values)
            for group, chain, event_type, state_key in cursor.fetchall():
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
            cursor.execute(_AT_ITS_KEY, {"groups": wanted, "types": types, "keys": state_keys})
            for group, event_type, state_key, event_id in cursor.fetchall():
                found[group][event_type, state_key] = event_id
    return found


class StateDigest(NamedTuple):
    """The number of entries of a state, and a digest by which the state is compared with other states."""

    entries: int
    sha256: str


def state_digest(group: int, using: str = "default") -> StateDigest | None:
    """Returns the digest of a group's state, computed by the database, or null if the group is not stored."""
    with connections[using].cursor() as cursor:
        cursor.execute(_DIGEST, {"group": group})
        is_stored, *found = cursor.fetchone()
    return StateDigest(*found) if is_stored else None


def entries(groups: Collection[int], keys: Collection[StateKey], using: str = "default") -> dict[int, State]:
    """Returns for each group its entries at these keys.

    The result is ``{group: {key: event ID}}``, without the keys at which a group has no entry. A group that is not
    stored has an empty dictionary.
    """
    found: dict[int, State] = {group: {} for group in groups}
    return found | _at_keys(list(found), keys, using)


def _entries_of_stored(groups: Collection[int], keys: Collection[StateKey], using: str) -> dict[int, State]:
    """Returns the same as ``entries``. Raises ``UnknownStateGroup`` for a group that is not stored."""
    found = entries(groups, keys, using)
    without = {group for group, state in found.items() if not state}
    if without:
        stored = StateGroup.objects.using(using).filter(pk__in=without).values_list("pk", flat=True)
        for group in sorted(without.difference(stored)):
            raise _unknown(group)
    return found


def _one_pass(group: int, only: StateFilter, using: str) -> State:
    condition, values = _condition(only)
    query = _FILTERED.format(condition=condition) if condition else _FULL_STATE_PLANNED
    with connections[using].cursor() as cursor:
        cursor.execute(query, {"group": group, **values})
        found = {(event_type, state_key): event_id for event_type, state_key, event_id in cursor.fetchall()}
    if None in found.values():
        return {key: event_id for key, event_id in found.items() if event_id is not None}
    return found


# --- filters ----------------------------------------------------------------------------------------------------------


def _condition(only: StateFilter) -> tuple[str, dict[str, list[str]]]:
    """Returns the filter as an SQL condition on delta rows, with its values as parameters."""
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
    """Returns the values that a text column can hold. Other values occur in no stored entry."""
    return sorted(value for value in values if _can_be_stored(value))


def _storable_keys(keys: Collection[StateKey]) -> list[StateKey]:
    return sorted(key for key in keys if _can_be_stored(key[0]) and _can_be_stored(key[1]))


def _can_be_stored(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)


def _at_keys(groups: Collection[int], keys: Collection[StateKey], using: str) -> dict[int, State]:
    """Returns for each group its entries at these keys. A group that has no entry at any of the keys is left out."""
    asked = _storable_keys(keys)
    found: dict[int, State] = {}
    types, state_keys = [key[0] for key in asked], [key[1] for key in asked]
    values: dict[str, list[int] | list[str]] = {"groups": list(groups), "types": types, "keys": state_keys}
    with connections[using].cursor() as cursor:
        cursor.execute(_AT_KEYS, values)
        for group, event_type, state_key, event_id in cursor.fetchall():
            found.setdefault(group, {})[event_type, state_key] = event_id
    return found


# --- several groups ---------------------------------------------------------------------------------------------------


class _Chains:
    """Computes the states of some wanted groups from the rows of the chains on which these groups build."""

    def __init__(self) -> None:
        self._spans: dict[int, dict[int, int]] = {}
        self._rows: dict[int, list[tuple[int, StateKey, str | None]]] = {}

    def take(self, row: tuple[Any, ...]) -> None:
        """Adds a row of the query ``_MANY``, which returns two kinds of rows.

        A row of the first kind is a chain on which a wanted group builds, with the highest group to read in that chain.
        A row of the second kind is a delta row of a chain.
        """
        wanted, chain, group, event_type, state_key, event_id = row
        if wanted is None:
            self._rows.setdefault(chain, []).append((group, (event_type, state_key), event_id))
        else:
            self._spans.setdefault(wanted, {})[chain] = group

    def __contains__(self, group: int) -> bool:
        return group in self._spans

    def states(self) -> dict[int, State]:
        """Returns the states of the wanted groups, by group.

        Each chain is read once, in ascending order of the chains' IDs. A chain builds on a group of a chain with a
        lower ID. So the state of that group is known before the chain is read.
        """
        below, ends = self._places()
        at: dict[int | None, State] = {None: {}}
        for chain in sorted(ends):
            state = dict(at[below[chain]])
            rows = sorted(self._rows.get(chain, ()), key=itemgetter(0), reverse=True)
            for end in sorted(ends[chain]):
                while rows and rows[-1][0] <= end:
                    _, key, event_id = rows.pop()
                    if event_id is not None:
                        state[key] = event_id
                    else:
                        state.pop(key, None)
                at[end] = dict(state)
        return {group: at[group] for group in self._spans}

    def _places(self) -> tuple[dict[int, int | None], dict[int, set[int]]]:
        """Returns two dictionaries by chain: the group on which it builds, and its groups whose states are needed.

        The group on which a chain builds is null for a chain that builds on no group.
        """
        below: dict[int, int | None] = {}
        ends: dict[int, set[int]] = {}
        for spans in self._spans.values():
            line = sorted(spans.items(), reverse=True)
            for (chain, upto), under in zip(line, [*line[1:], (0, None)], strict=True):
                below[chain] = under[1]
                ends.setdefault(chain, set()).add(upto)
        return below, ends


def _unknown(group: int) -> UnknownStateGroup:
    return UnknownStateGroup(f"State group {group} is not stored: it was deleted, or its room never was complete.")
