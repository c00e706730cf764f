"""The database, the page and its figures."""
