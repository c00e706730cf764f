# What the jobs of ../report.smk read, where the file's name follows from the configuration.


def parts_of_table(w):
    """The files that {table} is gathered from: exactly those that the configuration asks for."""
    return tables.files_of_table(CONFIG, w.table)
