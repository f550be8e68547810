"""The bulk import of room histories."""
