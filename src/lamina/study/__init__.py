"""What a configuration asks for: variants, paths, sweeps and plans, and what can be refused before the first job."""
