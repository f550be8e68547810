"""Reads rows and stored positions, and receives notifications of new positions, each applied before it shows."""
