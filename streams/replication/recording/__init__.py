"""Recording the streams of a foreign server."""
