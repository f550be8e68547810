"""Reading rows and stored positions, hearing of new ones, and dropping cached values that they make old."""
