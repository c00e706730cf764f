"""The world of the embedded model: its tasks, its corpus, its training."""
