"""Tables of the room ``state``: state groups and their deltas.

A *state group* is one full state of a room: a map ``(type, state_key) -> event_id``. It is stored as a *delta*: the
keys that differ from the group it is built on. Many events share a group
(``events.models.Event.state_group``).

Groups lie in *chains*. All groups of a chain build on each other in the order of their IDs, so the delta rows that
make up the state of group ``g`` inside its chain are one contiguous index range, ``chain = c AND state_group <=
g``, and the row with the highest ``state_group`` wins per key. The first group of a chain is either full
(``prev_group`` null) or builds on a group of another chain; ``hops`` counts such steps and is bounded
(``state.groups.deltas``), so reading any group is one query with a bounded number of range scans.

The group of an accepted state event has the state before the event as its ``prev_group``, in other words: its delta
is that event (a create event has none).

Invariants: group IDs of a room ascend in the order of creation (``prev_group < id``); a chain is only extended at
its last group, by whoever holds the room's lock. Other services import these models and should only read them.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from state.fields import IdentifierField
from streams.models.read_only import ReadOnlyQuerySet

__all__ = ["StateGroup", "StateGroupDelta"]


class StateGroupQuerySet(ReadOnlyQuerySet["StateGroup"]):
    """State groups; indexed by ID, (room_id, ID) and prev_group."""

    def in_room(self, room_id: str) -> StateGroupQuerySet:
        """The groups of a room, in the order of creation."""
        return self.filter(room_id=room_id).order_by("id")

    def built_on(self, group: int) -> StateGroupQuerySet:
        """The groups that are deltas of this one."""
        return self.filter(prev_group=group).order_by("id")


class StateGroup(models.Model):
    """One full state of a room, see the module for how groups, chains and deltas make it up.

    ``keys`` is the number of entries of the full state, ``rows_to_read`` the number of delta rows that an expansion
    reads.
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
    """The rows of state groups; indexed by (chain, state_group, type, state_key)."""

    def of_group(self, group: StateGroup) -> StateGroupDeltaQuerySet:
        """In what a group differs from the one that it is built on; of a full one all entries."""
        return self.filter(chain=group.chain, state_group=group.pk).order_by("type", "state_key")


class StateGroupDelta(models.Model):
    """One entry in which a group differs from its ``prev_group``; null ``event_id``: the key is not in this group.

    A full group has one row per entry. The primary key is the range that expansions read.
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

    def __str__(self) -> str:
        return f"{self.state_group}: {self.type} {self.state_key!r} -> {self.event_id}"
