"""State groups as other programs might have stored them: right, and with far more rows than are needed (pure).

A layout is a list of ``(group, prev group, chain, changes)``; a needed group has the number that it had before, times
``SPREAD``, so that there is room for groups that only this layout has.
"""

from __future__ import annotations

SPREAD = 3


def copied(groups, deltas):
    """The group below each one is stored in full once more, right under it."""
    steps, states = _steps(groups, deltas), expanded(groups, deltas)
    found = []
    for group, (prev, changes) in steps.items():
        own = group * SPREAD + 2
        if prev is None:
            found.append((own, None, own, changes))
        else:
            found.append((own - 1, None, own - 1, states[prev]))
            found.append((own, own - 1, own - 1, changes))
    return found


def one_by_one(groups, deltas):
    """Every group begins a chain, however many have to be read then."""
    steps = _steps(groups, deltas)
    found = []
    for group, (prev, changes) in steps.items():
        own = group * SPREAD + 2
        found.append((own, None if prev is None else prev * SPREAD + 2, own, changes))
    return found


LAYOUTS = {"copied": copied, "one by one": one_by_one}


def expanded(groups, deltas):
    """Group -> its full state."""
    states = {}
    for group, (prev, changes) in _steps(groups, deltas).items():
        whole = {**(states[prev] if prev is not None else {}), **changes}
        states[group] = {key: event for key, event in whole.items() if event is not None}
    return states


def _steps(groups, deltas):
    changes = {}
    for _, group, kind, key, event in deltas:
        changes.setdefault(group, {})[kind, key] = event
    return {row[0]: (row[1], changes.get(row[0], {})) for row in groups}
