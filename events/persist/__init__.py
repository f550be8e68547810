"""Storing events that come in: one batch at a time, under the room's lock."""
