# Needs: tables of what was measured. Gives: the tables of how metrics, tasks and selectors compare, with their errors:
# agreements, dissociations and comparisons.


localrules:
    compare_metrics,
    compare_tasks,
    compare_selectors,


rule compare_metrics:
    input:
        # With the scores among them, the rule also follows an edit to a metric, which is imported by name.
        [paths.table(table) for table in ("relevance", "sweeps", "calibrations")],
    output:
        paths.table("agreements"),
    log:
        "logs/compare_metrics.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("compare_metrics", *arguments.table_modules(["agreements"])),
    shell:
        'python "$SCRIPTS/compare_metrics.py" --tables {input} --output {output} 2> {log}'


rule compare_tasks:
    input:
        [paths.table(table) for table in ("sweeps", "calibrations")],
    output:
        paths.table("dissociations"),
    log:
        "logs/compare_tasks.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("compare_tasks", *arguments.table_modules(["dissociations"])),
    shell:
        'python "$SCRIPTS/compare_tasks.py" --tables {input} --output {output} 2> {log}'


rule compare_selectors:
    input:
        views="sql/views.sql",
        tables=[paths.table(table) for table in ("calibrations", "benchmarks", "benchmark_samples")],
    output:
        paths.table("comparisons"),
    log:
        "logs/compare_selectors.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("compare_selectors", *arguments.table_modules(["comparisons"])),
    shell:
        'python "$SCRIPTS/compare_selectors.py" --views {input.views} --tables {input.tables} --output {output} 2> {log}'
