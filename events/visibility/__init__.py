"""Decides which events a user sees: the rule, the stored ranges, and the SQL predicate over them."""
