"""Training-free repairs fitted on a calibration."""
