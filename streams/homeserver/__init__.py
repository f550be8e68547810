"""Appends to the plain streams of a homeserver, with the users who type and the queues for federation."""
