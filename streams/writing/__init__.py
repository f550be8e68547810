"""Appends facts: the writer of a process with its lease, reservations, side effects of an insert, and dead writers."""
