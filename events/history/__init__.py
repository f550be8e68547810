"""Computes the rows of a whole room, in chunks of its events."""
