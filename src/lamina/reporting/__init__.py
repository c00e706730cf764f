"""Everything that readers see: the database, the report and its controls, recommendations, comparisons of runs."""
