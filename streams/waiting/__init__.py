"""Waits for positions of streams, returns their current positions, reads facts in pages, and listens for new facts."""
