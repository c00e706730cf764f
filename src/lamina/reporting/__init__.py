"""What people look at: the database, the report and its controls, recommendations, comparisons of runs."""
