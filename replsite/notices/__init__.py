"""Tells people by mail or webhook that the site is wrong, and that it is well again."""
