"""Commands of the room ``events``."""
