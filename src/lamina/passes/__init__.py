"""What a sweep can be beside removals: weights, unexplained streams, random cut models."""
