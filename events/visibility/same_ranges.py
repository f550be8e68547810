"""Compares two sets of ranges by what they show to users (pure)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence

from events.visibility.ranges import VisibilityRow


def show_the_same(left: Sequence[VisibilityRow], right: Sequence[VisibilityRow], places: Sequence[int]) -> bool:
    """Returns true if the two sets of ranges show the same accepted events, at ``places``, to all users.

    Different rows may mean the same: each batch of backfilled events may have ranges of its own, and in a room with
    very many forward extremities the current state is computed only once for each batch.
    """
    return _covered(left, places) == _covered(right, places)


_CONTINUING_KINDS = ("joined", "invited")
_MERGED_KINDS = dict.fromkeys(("joined", "invited", "shown", "hidden"), "own")


def _covered(
    rows: Sequence[VisibilityRow], places: Sequence[int]
) -> dict[tuple[str | None, str], list[tuple[int, int]]]:
    # (user, kind) -> merged spans of indexes in ``places``. Users' own rows are merged, others by kind.
    spans: dict[tuple[str | None, str], list[tuple[int, int]]] = {}
    hidden: dict[str | None, set[int]] = {}
    for row in rows:
        first = bisect_left(places, row.first)
        last = len(places) - 1 if row.last is None else bisect_right(places, row.last) - 1
        if row.kind == "cut":  # hides what is above its place, and also what is to come
            spans[row.user_id, "cut"] = [(bisect_right(places, row.first), len(places))]
        elif row.kind == "hidden":
            hidden.setdefault(row.user_id, set()).add(first)
        elif first <= last:
            spans.setdefault((row.user_id, _MERGED_KINDS.get(row.kind, row.kind)), []).append((first, last))
    open_to_all = _merged([span for kind in ("shared", "world") for span in spans.get((None, kind), ())], ())
    covered = {}
    for (user_id, kind), found in spans.items():
        covered[user_id, kind] = _merged(found, hidden.get(user_id, ()) if kind == "own" else ())
        if kind == "own":  # where a room-wide range admits members, the predicate does not read a user's own rows
            covered[user_id, kind] = list(_outside(covered[user_id, kind], open_to_all))
    if open_to_all and open_to_all[-1][1] == len(places) - 1:  # open ranges matter for events to come
        covered.update(
            ((row.user_id, "open"), [(0, 0)]) for row in rows if row.last is None and row.kind in _CONTINUING_KINDS
        )
    return {key: found for key, found in covered.items() if found}


def _merged(spans: list[tuple[int, int]], hidden: Collection[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found if not hidden else list(_outside(found, [(number, number) for number in sorted(hidden)]))


def _outside(spans: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    number = 0
    for first, last in spans:
        start = first
        while number < len(others) and others[number][1] < start:
            number += 1
        index = number
        while index < len(others) and others[index][0] <= last:
            if start < others[index][0]:
                yield start, others[index][0] - 1
            start = others[index][1] + 1
            index += 1
        if start <= last:
            yield start, last
