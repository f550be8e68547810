"""Purge, resync and compression of rooms as jobs."""
