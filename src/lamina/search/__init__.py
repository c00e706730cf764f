"""Budgets and strategies: they decide from measurements which units are removed."""
