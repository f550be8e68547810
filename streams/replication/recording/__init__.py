"""Recording of a foreign server's streams in our database."""
