"""Code that servers and followers share and that is not part of the protocol."""
