"""Commands of the app ``events``."""
