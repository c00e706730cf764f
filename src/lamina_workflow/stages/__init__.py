"""Connect the rules to the library: what rules pass to their jobs, and what the jobs need."""
