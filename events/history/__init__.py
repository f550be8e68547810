"""Computes the rows of all tables for a whole room, in chunks of the room's events."""
