"""Statistics of rooms and of the site."""
