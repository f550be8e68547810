"""Trimming streams, checking them, and the subjects of the commands ``purge`` and ``resync``."""
