"""Archives of rooms. A job writes an archive before a purge, and another job restores it."""
