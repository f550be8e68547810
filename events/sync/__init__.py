"""Sync: what is new to a user since a token."""
