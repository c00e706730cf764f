"""The configuration held against itself and the files it names: what can be refused before the first job."""
