"""Declarations of the plain homeserver streams (pure)."""
