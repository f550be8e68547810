"""Waits until this process sees a position, and returns the current positions."""
