"""Waiting for positions, and the current ones."""
