"""One pass over a model carries many candidates; taps hand out its streams."""
