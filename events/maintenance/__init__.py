"""What operations on rooms are made of: arguments, cuts, archives before purges, batches, locks, state groups, restores."""
