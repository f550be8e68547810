"""Trims and checks streams, and holds the subjects of the commands ``purge`` and ``resync``."""
