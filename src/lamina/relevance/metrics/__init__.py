"""Relevance metrics."""
