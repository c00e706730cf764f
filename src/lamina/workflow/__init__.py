"""What the rules need, free of torch: studies, digests, paths, resources."""
