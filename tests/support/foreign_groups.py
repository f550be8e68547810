"""State groups as other programs might have stored them: right, and with far more rows than are needed.

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


def store_as(room_id, layout):
    """Store the groups of a room anew in a layout, and point its events at them; returns the rows that they take."""
    from django.db import connection

    from events.models import Event
    from state.models import StateGroup, StateGroupDelta
    from state.store import reserve_group_ids

    olds = StateGroup.objects.filter(room_id=room_id).order_by("id")
    numbers = {group: number for number, group in enumerate(olds.values_list("id", flat=True))}
    groups = [(numbers[g.pk], None if g.prev_group is None else numbers[g.prev_group]) for g in olds]
    rows = StateGroupDelta.objects.filter(chain__in=list(numbers))
    deltas = [(0, numbers[row.state_group], row.type, row.state_key, row.event_id) for row in rows]
    stored = LAYOUTS[layout](groups, deltas)
    with connection.cursor() as cursor:
        ids = dict(zip((row[0] for row in stored), reserve_group_ids(cursor, len(stored)), strict=True))
    states = {}
    for group, prev, _, changes in stored:
        whole = {**(states[prev] if prev is not None else {}), **changes}
        states[group] = {key: event for key, event in whole.items() if event is not None}
    StateGroup.objects.bulk_create(
        StateGroup(id=ids[group], room_id=room_id, prev_group=None if prev is None else ids[prev], chain=ids[chain],
                   hops=0, keys=len(states[group]), rows_to_read=len(states[group]))
        for group, prev, chain, _ in stored
    )  # fmt: skip
    StateGroupDelta.objects.bulk_create(
        StateGroupDelta(chain=ids[chain], state_group=ids[group], type=kind, state_key=key, event_id=event_id)
        for group, _, chain, changes in stored
        for (kind, key), event_id in changes.items()
    )
    for group, number in numbers.items():
        Event.objects.writable().filter(state_group=group).update(state_group=ids[number * SPREAD + 2])
    StateGroupDelta.objects.filter(chain__in=list(numbers)).delete()
    StateGroup.objects.filter(pk__in=list(numbers)).delete()
    return len(stored) + sum(len(changes) for *_, changes in stored)


def _steps(groups, deltas):
    changes = {}
    for _, group, kind, key, event in deltas:
        changes.setdefault(group, {})[kind, key] = event
    return {row[0]: (row[1], changes.get(row[0], {})) for row in groups}
