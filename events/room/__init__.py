"""Applies the rules of one room: graph, event auth, extremities, and the state at every event."""
