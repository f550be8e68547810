"""Sends facts to browsers as they become complete: over server-sent events and WebSockets."""
