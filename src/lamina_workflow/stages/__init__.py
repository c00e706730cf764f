"""On top of the library: what the rules give their jobs, and what these need."""
