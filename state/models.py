"""Tables of state groups and their deltas.

A *state group* is one full state of a room: a map ``(type, state_key) -> event_id``. It is stored as a *delta*: the
entries that differ from the group below it. Many events share a group (``events.models.Event.state_group``).

Groups lie in *chains*. The groups of a chain build on each other in the order of their IDs. So the rows for group ``g``
in its chain ``c`` are one index range of delta rows, ``chain = c AND state_group <= g``. For each key the row with the
highest ``state_group`` wins. The first group of a chain is stored in full (``prev_group`` null), or builds on a group
of another chain. ``hops`` counts the chains below and is bounded (``state.groups.deltas``). So any group is read by one
query with a bounded number of range scans.

The group of an accepted state event is stored on top of the group with the state before the event (``prev_group``). The
delta of such a group is one row, the event itself. The group of a create event has no group below.

Invariants: group IDs of a room ascend in the order of creation (``prev_group < id``). A chain is extended only at its last
group, and only under the room's lock. Other services may import these models, and should only read them.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from state.fields import IdentifierField
from streams.models.read_only import ReadOnlyQuerySet

__all__ = ["StateGroup", "StateGroupDelta"]


class StateGroupQuerySet(ReadOnlyQuerySet["StateGroup"]):
    """Queries of state groups. The table has indexes on ID, (room_id, ID) and prev_group."""

    def in_room(self, room_id: str) -> StateGroupQuerySet:
        """Returns the groups of a room in the order of creation."""
        return self.filter(room_id=room_id).order_by("id")

    def built_on(self, group: int) -> StateGroupQuerySet:
        """Returns the groups that are stored as deltas on top of ``group``."""
        return self.filter(prev_group=group).order_by("id")


class StateGroup(models.Model):
    """One full state of a room. The docstring of this module explains groups, chains and deltas.

    ``keys`` is the number of entries of the full state. ``rows_to_read`` is the number of delta rows that a query for
    the full state reads.
    """

    id = models.BigAutoField(primary_key=True)
    room_id = IdentifierField()
    prev_group = models.BigIntegerField(null=True, help_text="group this one is a delta of; null: stored in full")
    chain = models.BigIntegerField(help_text="ID of the first group of its chain")
    hops = models.SmallIntegerField(help_text="other chains that an expansion reads besides its own")
    keys = models.IntegerField(help_text="entries of the full state")
    rows_to_read = models.IntegerField(help_text="delta rows that an expansion reads")

    objects = models.Manager()
    read = StateGroupQuerySet.as_manager()

    class Meta:
        db_table = "state_stategroup"
        indexes: ClassVar = [
            models.Index(fields=["room_id", "id"], name="state_stategroup_room"),
            models.Index(fields=["prev_group"], name="state_stategroup_prev"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(prev_group__isnull=True) | models.Q(prev_group__lt=models.F("id")),
                name="state_stategroup_prev_is_older",
            ),
            models.CheckConstraint(
                condition=models.Q(chain__lte=models.F("id")), name="state_stategroup_chain_is_older"
            ),
        ]

    def __str__(self) -> str:
        return f"state group {self.pk}"


class StateGroupDeltaQuerySet(ReadOnlyQuerySet["StateGroupDelta"]):
    """Queries of delta rows, which have indexes on (chain, state_group, type, state_key) and (chain, type, state_key)."""

    def of_group(self, group: StateGroup) -> StateGroupDeltaQuerySet:
        """Returns the rows of a group: its difference from the group below, or all entries of a full group."""
        return self.filter(chain=group.chain, state_group=group.pk).order_by("type", "state_key")


class StateGroupDelta(models.Model):
    """One entry in which a group differs from its ``prev_group``. A null ``event_id`` removes the key.

    A full group has one row for each entry. A query for a state scans a range of the primary key. A query for a single
    key finds the newest row of the key in a chain, by the index ``state_stategroupdelta_key``.
    """

    pk = models.CompositePrimaryKey("chain", "state_group", "type", "state_key")
    chain = models.BigIntegerField()
    state_group = models.BigIntegerField()
    type = IdentifierField()
    state_key = IdentifierField()
    event_id = IdentifierField(null=True)

    objects = models.Manager()
    read = StateGroupDeltaQuerySet.as_manager()

    class Meta:
        db_table = "state_stategroupdelta"
        indexes: ClassVar = [
            models.Index(fields=["chain", "type", "state_key", "state_group"], name="state_stategroupdelta_key"),
        ]

    def __str__(self) -> str:
        return f"{self.state_group}: {self.type} {self.state_key!r} -> {self.event_id}"
