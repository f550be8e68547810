"""Appends facts: the writer of a process, its lease, reservations, effects of an insert, and retiring dead writers."""
