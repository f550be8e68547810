"""Sync tokens and the positions in them."""
