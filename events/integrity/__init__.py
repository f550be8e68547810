"""Checks the stored rows of a room against its events, and repairs what differs."""
