"""The shop with replsite."""
