"""Methods of repair, one a file with its options; `lamina.repairs.protocol` says what each has."""
