"""Checks the stored rows of a room against the room's events, and repairs rows that differ."""
