"""State groups as chains of deltas: building, filtering, compacting, and deleting groups that are not needed."""
