"""Sweeps that are no plain removals: weights, unexplained streams, random cut models."""
