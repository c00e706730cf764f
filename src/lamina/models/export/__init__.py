"""A variant as a checkpoint of its own."""
