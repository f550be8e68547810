"""Examines the database of a Synapse server, read-only: sizes, positions, and its rooms computed again (``manage.py doctor``)."""
