"""Which units to remove: an evaluator, budgets and plans."""
