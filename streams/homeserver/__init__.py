"""Appends to the streams of a homeserver besides events, such as receipts, presence, typing and the federation queues."""
