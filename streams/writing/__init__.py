"""Appends facts: one INSERT, reservations, keys, and the newest row of each key."""
