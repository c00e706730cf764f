"""Writes a variant as a checkpoint of its own."""
