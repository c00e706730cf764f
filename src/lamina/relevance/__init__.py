"""Relevance metrics and their statistics."""
