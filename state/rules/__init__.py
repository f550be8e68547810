"""The auth rules of room versions 1 to 12."""
