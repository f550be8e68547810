"""States that share the entries of an older state (pure).

A join changes one entry of a state that may have 100,000. A plain copy takes milliseconds for each join, and filling a
room takes time that is quadratic in its members. A layered state keeps the changes beside the older state instead. When
the changes become many, they are merged once into a new plain state. So reading and adding both stay cheap.

    base {topic: T1, name: N} with changes {topic: T2, name: None} is read as {topic: T2}

An event needs a few entries of the state only. So the older state of a large room need not be in memory: it has the entries
that were asked for so far, and the state's ``Reads`` reads the others by key. States that share the older state share what
was read. An entry that is not among the changes of a state is the older state's, so it may be read by way of either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

StateKey = tuple[str, str]
"""``(type, state_key)``."""
_FEW = 64


class Reads(Protocol):
    """Reads one stored state."""

    def entries(self, keys: Collection[StateKey], /) -> Mapping[StateKey, str]: ...

    def everything(self) -> dict[StateKey, str]: ...


class LayeredState(Mapping[StateKey, str]):
    """An older state with changes on top. None removes a key. The changes are not modified after the creation.

    With ``reads``, the older state has only the entries that were read, and None at keys without an entry. It grows.
    """

    __slots__ = ("base", "changes", "reads")

    def __init__(
        self,
        base: dict[StateKey, str] | dict[StateKey, str | None],
        changes: Mapping[StateKey, str | None],
        reads: Reads | None = None,
    ) -> None:
        self.base: dict[StateKey, str | None] = base  # type: ignore[assignment] # only a state with ``reads`` adds None
        self.changes, self.reads = changes, reads

    def get(self, key: StateKey, default: str | None = None) -> str | None:  # type: ignore[override]
        if key in self.changes:
            event_id = self.changes[key]
        else:
            if self.reads is not None and key not in self.base:
                self.load((key,))
            event_id = self.base.get(key)
        return default if event_id is None else event_id

    def load(self, keys: Collection[StateKey]) -> None:
        """Reads the entries at these keys together, unless they are in memory."""
        if self.reads is None:
            return
        missing = [key for key in keys if key not in self.changes and key not in self.base]
        if missing:
            found = self.reads.entries(missing)
            self.base.update((key, found.get(key)) for key in missing)

    def __getitem__(self, key: StateKey) -> str:
        event_id = self.get(key)
        if event_id is None:
            raise KeyError(key)
        return event_id

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        if self.reads is not None:
            return len(whole(self))
        return len(self.base) + sum((self.changes[key] is not None) - (key in self.base) for key in self.changes)

    def __iter__(self) -> Iterator[StateKey]:
        if self.reads is not None:
            yield from whole(self)
            return
        yield from (key for key in self.base if key not in self.changes)
        yield from (key for key, event_id in self.changes.items() if event_id is not None)


def layered(state: Mapping[StateKey, str], changes: Mapping[StateKey, str | None]) -> Mapping[StateKey, str]:
    """Returns ``state`` with ``changes`` (None removes a key).

    Time grows with the square root of the size of the state, averaged over many calls that build on each other.
    """
    if not changes:
        return state
    base, below = parts(state)
    found = LayeredState(base, {**below, **changes}, reads_of(state))
    return whole(found) if found.reads is None and _has_many_changes(found) else found


def stored_as(state: Mapping[StateKey, str], reads: Reads) -> Mapping[StateKey, str]:
    """Returns the same state as it is stored now. What is not in memory is read by ``reads`` from now on."""
    if not isinstance(state, LayeredState) or state.reads is None:
        return state
    if _has_many_changes(state):
        return LayeredState({**state.base, **state.changes}, {}, reads)
    return LayeredState(state.base, state.changes, reads)


def _has_many_changes(state: LayeredState) -> bool:
    return len(state.changes) > _FEW and len(state.changes) ** 2 > len(state.base)


def layered_on_base(
    state: Mapping[StateKey, str], changes: Mapping[StateKey, str | None], reads: Reads
) -> Mapping[StateKey, str]:
    """Returns ``state`` with ``changes``, like ``layered``, for many states that are built from one older state.

    The results share the older state even if each of them has many changes. ``reads`` reads the result, which is stored.
    """
    base, below = parts(state)
    changed = {**below, **changes}
    if reads_of(state) is not None:
        return LayeredState(base, changed, reads)
    found = LayeredState(base, {key: event_id for key, event_id in changed.items() if base.get(key) != event_id})
    return found if 2 * len(found.changes) <= len(base) else whole(found)


def whole(state: Mapping[StateKey, str]) -> dict[StateKey, str]:
    """Returns the state as a dictionary of its own. Reads it, if it is not in memory."""
    if not isinstance(state, LayeredState):
        return dict(state)
    if state.reads is not None:
        found = state.reads.everything()
    else:
        found = {key: event_id for key, event_id in state.base.items() if event_id is not None}
    for key, event_id in state.changes.items():
        if event_id is None:
            found.pop(key, None)
        else:
            found[key] = event_id
    return found


def differing_keys(
    left: Mapping[StateKey, str], right: Mapping[StateKey, str], compared: dict[tuple[int, int], set[StateKey]]
) -> set[StateKey] | None:
    """Returns the keys at which two states differ, or None if that is not known from what is in memory.

    Of states on the same older state, only the changes are compared.

    ``compared`` caches the keys at which two older states differ, by the pair of their ``id``. The caller must keep the
    older states alive as long as it uses ``compared``.
    """
    base, changes = parts(left)
    other_base, other_changes = parts(right)
    below: set[StateKey] = set()
    if base is not other_base:
        if reads_of(left) is not None or reads_of(right) is not None:
            return None
        if (id(base), id(other_base)) not in compared:
            below = {key for key, event_id in base.items() if other_base.get(key) != event_id}
            below.update(key for key in other_base if key not in base)
            compared[id(base), id(other_base)] = below
        below = compared[id(base), id(other_base)]
    keys = {*below, *changes, *other_changes}
    for state in (left, right):
        load(state, keys)
    return {key for key in keys if left.get(key) != right.get(key)}


def load(state: Mapping[StateKey, str], keys: Collection[StateKey]) -> None:
    """Reads the entries at these keys together, unless they are in memory."""
    if isinstance(state, LayeredState):
        state.load(keys)


def reads_of(state: Mapping[StateKey, str]) -> Reads | None:
    return state.reads if isinstance(state, LayeredState) else None


def parts(
    state: Mapping[StateKey, str],
) -> tuple[dict[StateKey, str | None], Mapping[StateKey, str | None]]:
    """Returns the older state of a layered state, and the changes on top. Any other state has no changes."""
    if isinstance(state, LayeredState):
        return state.base, state.changes
    return (state if isinstance(state, dict) else dict(state)), {}
