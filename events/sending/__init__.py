"""Composes, signs and stores the events of local users."""
