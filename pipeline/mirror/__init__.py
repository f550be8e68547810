"""The mirror of a running Synapse: its rooms, kept here a moment behind (``manage.py mirror``)."""
