"""One module per rule: a job as one object, made from the configuration and the wildcards, free of torch."""
