"""Reading rows and stored positions, receiving notifications of new ones, and dropping outdated cached values."""
