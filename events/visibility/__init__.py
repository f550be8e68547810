"""Who may see which event: the rule, the stored ranges, the predicate over them."""
