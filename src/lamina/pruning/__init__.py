"""Strategies that turn scores into plans."""
