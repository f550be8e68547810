"""Reads rows and stored positions, receives notifications of new positions, and drops outdated cached values."""
