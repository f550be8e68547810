"""Appends to the plain streams of a homeserver, such as receipts, presence, typing and the federation queues."""
