"""Management commands of the room ``events``."""
