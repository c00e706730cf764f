"""Training-free mending of a pruned model."""
