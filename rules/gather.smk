# Needs: everything that the studies measured. Gives: the relevance of every sweep by every metric,
# results/tables/{table}.parquet and results/lamina.duckdb. Nothing here imports torch or needs a GPU.


localrules:
    score_relevance,
    gather_table,
    gather_jobs,
    build_database,


rule score_relevance:
    input:
        sweep=paths.sweep(KEY, "{removed}"),
        calibration=paths.calibration("{model}", "{calibration}"),
    output:
        paths.relevance(KEY, "{removed}"),
    log:
        "logs/score_relevance/{model}/{calibration}/{selector}/removed={removed}.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=lambda w: code_digest("score_relevance", *arguments.score_modules(CONFIG, w)),
        packages=lambda w: package_digest("score_relevance", *arguments.score_modules(CONFIG, w)),
        metrics=lambda w: [entry_digest(metric) for metric in arguments.measured(CONFIG, w)],
        arguments=lambda w: arguments.score(CONFIG, w),
    shell:
        'python "$SCRIPTS/score_relevance.py" --sweep {input.sweep} --calibration {input.calibration}'
        " {params.arguments} --code {params.code} --output {output} 2> {log}"


rule gather_table:
    input:
        lambda w: inputs.table_parts(CONFIG, w.table),
    output:
        paths.table("{table}"),
    log:
        "logs/gather_table/{table}.log",
    wildcard_constraints:
        table=any_of(TABLES.keys() - {"jobs", "agreements", "dissociations", "comparisons"}),
    conda:
        "../envs/lamina.yaml"
    params:
        # Elsewhere the tables stand aside; here their columns are what is made.
        code=lambda w: code_digest("gather_table", *arguments.table_modules([w.table])),
        arguments=lambda w: arguments.gather(CONFIG, w.table),
    shell:
        # A list of many files is longer than a command line may be.
        "printf '%s\\n' --input {input} > {log}.inputs;"
        ' python "$SCRIPTS/gather_table.py" --table {wildcards.table} @{log}.inputs {params.arguments}'
        " --output {output} 2> {log}"


rule gather_jobs:
    input:
        # All that was run has left its record once the tables of results are there.
        [paths.table(table) for table in TABLES if table != "jobs"],
    output:
        paths.table("jobs"),
    log:
        "logs/gather_jobs.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("gather_table", *arguments.table_modules(["jobs"])),
    shell:
        'python "$SCRIPTS/gather_table.py" --table jobs --folder results/jobs --logs logs --output {output} 2> {log}'


rule build_database:
    input:
        views="sql/views.sql",
        tables=[paths.table(table) for table in TABLES],
    output:
        "results/lamina.duckdb",
    log:
        "logs/build_database.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("build_database", *arguments.table_modules(TABLES)),
        study=STUDY,
    shell:
        'python "$SCRIPTS/build_database.py" --views {input.views} --tables {input.tables} --study {params.study:q}'
        " --output {output} 2> {log}"
