"""How jobs run: fingerprints of code, devices, failures, progress."""
