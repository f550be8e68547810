"""States that share the entries of an older state (pure).

A join changes one entry of a state that may have 100,000. A plain copy takes milliseconds for each join, and filling a
room takes time that is quadratic in its members. A layered state keeps the changes beside the older state instead. When
the changes become many, they are merged once into a new plain state. So reading and adding both stay cheap.

    base {topic: T1, name: N} with changes {topic: T2, name: None} is read as {topic: T2}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

StateKey = tuple[str, str]
"""``(type, state_key)``."""
_FEW = 64


class LayeredState(Mapping[StateKey, str]):
    """An older state with changes on top. None removes a key. Neither part is modified after the creation."""

    __slots__ = ("_size", "base", "changes")

    def __init__(self, base: dict[StateKey, str], changes: dict[StateKey, str | None]) -> None:
        self.base, self.changes = base, changes
        self._size = len(base) + sum((changes[key] is not None) - (key in base) for key in changes)

    def __getitem__(self, key: StateKey) -> str:
        event_id = self.changes[key] if key in self.changes else self.base[key]
        if event_id is None:
            raise KeyError(key)
        return event_id

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[StateKey]:
        yield from (key for key in self.base if key not in self.changes)
        yield from (key for key, event_id in self.changes.items() if event_id is not None)


def layered(state: Mapping[StateKey, str], changes: Mapping[StateKey, str | None]) -> Mapping[StateKey, str]:
    """Returns ``state`` with ``changes`` (None removes a key).

    Time grows with the square root of the size of the state, averaged over many calls that build on each other.
    """
    if not changes:
        return state
    base = state.base if isinstance(state, LayeredState) else state if isinstance(state, dict) else dict(state)
    merged = {**state.changes, **changes} if isinstance(state, LayeredState) else dict(changes)
    found = LayeredState(base, merged)
    return whole(found) if len(merged) > _FEW and len(merged) ** 2 > len(base) else found


def layered_on_base(state: Mapping[StateKey, str], changes: Mapping[StateKey, str | None]) -> Mapping[StateKey, str]:
    """Returns ``state`` with ``changes``, like ``layered``, for many states that are built from one older state.

    The results share the older state even if each of them has many changes.
    """
    base, below = parts(state)
    merged = {key: event_id for key, event_id in {**below, **changes}.items() if base.get(key) != event_id}
    found = LayeredState(base if isinstance(base, dict) else dict(base), merged)
    return found if 2 * len(merged) <= len(base) else whole(found)


def whole(state: Mapping[StateKey, str]) -> dict[StateKey, str]:
    if not isinstance(state, LayeredState):
        return dict(state)
    found = dict(state.base)
    for key, event_id in state.changes.items():
        if event_id is None:
            found.pop(key, None)
        else:
            found[key] = event_id
    return found


def differing_keys(
    left: Mapping[StateKey, str], right: Mapping[StateKey, str], compared: dict[tuple[int, int], set[StateKey]]
) -> set[StateKey]:
    """Returns the keys at which two states differ.

    Of states on the same older state, only the changes are compared.

    ``compared`` caches the keys at which two older states differ, by the pair of their ``id``. The caller must keep the
    older states alive as long as it uses ``compared``.
    """
    base, changes = parts(left)
    other_base, other_changes = parts(right)
    below: set[StateKey] = set()
    if base is not other_base:
        if (id(base), id(other_base)) not in compared:
            below = {key for key, event_id in base.items() if other_base.get(key) != event_id}
            below.update(key for key in other_base if key not in base)
            compared[id(base), id(other_base)] = below
        below = compared[id(base), id(other_base)]
    return {key for key in {*below, *changes, *other_changes} if left.get(key) != right.get(key)}


def parts(state: Mapping[StateKey, str]) -> tuple[Mapping[StateKey, str], Mapping[StateKey, str | None]]:
    """Returns the older state of a layered state, and the changes on top. Any other state has no changes."""
    return (state.base, state.changes) if isinstance(state, LayeredState) else (state, {})
