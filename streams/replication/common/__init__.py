"""Code that servers and followers share, apart from the protocol itself."""
