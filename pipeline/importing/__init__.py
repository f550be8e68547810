"""The bulk import of histories."""
