"""Writing and checking per-user feeds."""
