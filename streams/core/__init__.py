"""The rules of streams, without a database or network: declarations, tokens, positions, invalidation."""
