"""Measurements of what layers do that remove nothing."""
