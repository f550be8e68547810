"""Visibility of events: the rule, the stored ranges, and the SQL predicate over them."""
