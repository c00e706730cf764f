"""Methods of repair, one a file."""
