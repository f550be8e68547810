"""A whole room, walked in chunks."""
