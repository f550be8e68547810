"""Tables and questions in the terminal."""
