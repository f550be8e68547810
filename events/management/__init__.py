"""Management commands of the app ``events``."""
