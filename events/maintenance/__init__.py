"""What operations on rooms are made of: batches of purges, their lock, state groups, and restores."""
