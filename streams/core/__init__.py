"""The rules of streams without any edge: declarations, tokens, positions, the tracker, recovery, invalidation."""
