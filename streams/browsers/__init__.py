"""Sends facts to browsers as they become complete: over server-sent events, WebSockets and Durable Streams."""
