"""Management code of the engine."""
