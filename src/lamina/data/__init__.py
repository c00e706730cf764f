"""Calibrations and tasks."""
