"""A configuration held against itself and the files that it names: what can be refused before the first job."""
