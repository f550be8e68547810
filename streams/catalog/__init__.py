"""The plain homeserver streams, declared (pure)."""
