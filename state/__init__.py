"""Room state: the rules of room versions, state resolution, and state groups with their deltas."""
