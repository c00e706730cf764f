"""Short fine-tunes after pruning."""
