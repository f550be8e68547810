"""Archives of rooms: written before a purge, put back by a restore."""
