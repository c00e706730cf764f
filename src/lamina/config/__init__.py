"""The configuration: one class per section and method, checked completely before anything runs."""
