"""Purge, retention, censoring, restore, and the care of state groups."""
