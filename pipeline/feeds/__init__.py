"""Per-user feeds: writing and checking."""
