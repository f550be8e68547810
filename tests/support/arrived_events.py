"""Forward extremities of events that are all kept in memory."""

from __future__ import annotations

from collections.abc import Collection

from events.room.extremities import ForwardExtremities
from events.room.graph import Id, Node, is_accepted

__all__ = ["ArrivedExtremities"]


class ArrivedExtremities(ForwardExtremities[Id]):
    def __init__(self, *, live: bool = False) -> None:
        super().__init__(live=live)
        self.arrived: dict[Id, Node[Id]] = {}
        """The events that do not count, or may not count once a live event arrives."""

    def add(self, node: Node[Id]) -> tuple[bool, list[Id]]:
        if node.backfilled or not is_accepted(node):
            self.arrived[node.event_id] = node
        return super().add(node)

    def find(self, event_ids: Collection[Id]) -> list[Node[Id]]:
        return [self.arrived[event_id] for event_id in event_ids if event_id in self.arrived]
