"""Holds: PostgreSQL itself knows which appends are open, because each INSERT into a stream's table takes a lock first."""
