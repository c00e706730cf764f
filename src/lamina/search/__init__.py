"""Budgets and strategies: which units go, asked of measurements."""
