"""Tables and confirmations in the terminal."""
