"""What every shop has: the row of its business, and the effect of a fact."""
