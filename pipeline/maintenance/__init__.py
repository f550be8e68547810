"""Purge, resync and compression of many rooms as jobs."""
