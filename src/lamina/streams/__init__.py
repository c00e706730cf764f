"""Running a model over sequences with taps at the boundaries of its layers."""
