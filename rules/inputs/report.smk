# What the jobs of ../report.smk read, where the file's name follows from the configuration.


def parts_of_table(w):
    """The files that {table} is gathered from: exactly those that the configuration requires."""
    return tables.files_of_table(CONFIG, w.table)


def existing_judgements(w):
    """What `lamina judge` has measured so far: the page starts no measurement."""
    return sorted(map(str, Path("results/judged").rglob("*.json")))
