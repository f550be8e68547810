"""Applies the rules of one room: graph, event auth, extremities, state at every event."""
