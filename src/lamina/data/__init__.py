"""Calibrations, tasks and the embedded microworld."""
