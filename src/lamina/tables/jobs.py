"""Table `jobs`, from Snakemake's benchmark files."""

from lamina.tables.columns import FLOAT, STRING, Columns

GRAIN = "One row per job of the workflow that Snakemake timed."

COLUMNS: Columns = {
    "rule": (STRING, "Name of the rule."),
    "wildcards": (STRING, "Wildcards of the job as name=value, comma-separated; empty where the record names none."),
    "seconds": (FLOAT, "Wall time, in seconds."),
    "cpu_seconds": (FLOAT, "CPU time of the job and its children, in seconds. Null for jobs too short to sample."),
    "max_rss_mb": (FLOAT, "Largest resident memory, in MB. Null for jobs too short to sample."),
    "device": (STRING, "gpu where the job asked for one, else cpu."),
}
