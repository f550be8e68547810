"""Trimming and checking of streams, and the subjects of the commands ``purge`` and ``resync``."""
