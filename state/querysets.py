"""The usual questions to state groups, for whoever imports the models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.models.read_only import ReadOnlyQuerySet

if TYPE_CHECKING:
    from state.models import StateGroup, StateGroupDelta  # noqa: F401 - the names stand in strings

__all__ = ["StateGroupDeltaQuerySet", "StateGroupQuerySet"]


class StateGroupQuerySet(ReadOnlyQuerySet["StateGroup"]):
    """State groups; indexed by ID, (room_id, ID) and prev_group."""

    def in_room(self, room_id: str) -> StateGroupQuerySet:
        """The groups of a room, in the order of creation."""
        return self.filter(room_id=room_id).order_by("id")

    def built_on(self, group: int) -> StateGroupQuerySet:
        """The groups that are deltas of this one."""
        return self.filter(prev_group=group).order_by("id")


class StateGroupDeltaQuerySet(ReadOnlyQuerySet["StateGroupDelta"]):
    """The rows of state groups; indexed by (chain, state_group, type, state_key)."""

    def of_group(self, group: StateGroup) -> StateGroupDeltaQuerySet:
        """In what a group differs from the one that it is built on; of a full one all entries."""
        return self.filter(chain=group.chain, state_group=group.pk).order_by("type", "state_key")
