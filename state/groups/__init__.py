"""State groups as chains of deltas: stored, read, compacted, collected."""
