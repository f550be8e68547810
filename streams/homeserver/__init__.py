"""Appending to the plain streams of a homeserver: their rows, typing users, the queues for federation."""
