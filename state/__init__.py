"""Room state: room versions, state groups and their deltas, event -> group."""
