"""Methods of repair, one a file with its options; `lamina.repair.protocol` says what each has."""
