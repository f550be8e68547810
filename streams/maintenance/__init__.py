"""Trims streams, checks streams, and registers the subjects of the commands ``purge`` and ``resync``."""
