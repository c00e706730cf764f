# Needs: everything that the studies measured. Gives: the relevance of every sweep by every metric, results/tables/{table}.parquet,
# results/lamina.duckdb, results/figures/{figure}.svg and .csv, results/report.html. Nothing here imports torch or needs
# a GPU.


localrules:
    score_relevance,
    gather_table,
    compare_metrics,
    compare_tasks,
    compare_selectors,
    gather_jobs,
    build_database,
    plot_figure,
    collect_facts,
    render_report,
    check_refusals,


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
        study="+".join(Path(file).stem for file in workflow.configfiles),
    shell:
        'python "$SCRIPTS/build_database.py" --views {input.views} --tables {input.tables} --study {params.study:q}'
        " --output {output} 2> {log}"


rule plot_figure:
    input:
        views="sql/views.sql",
        # Only these: a reader that opened others would find one gone while it is made anew.
        tables=lambda w: [paths.table(table) for table in FIGURES[w.figure]],
    output:
        svg=report(
            paths.figure("{figure}"),
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels=lambda w: {"figure": TITLES[w.figure], "shown as": "picture"},
        ),
        data=report(
            paths.figure_data("{figure}"),
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels=lambda w: {"figure": TITLES[w.figure], "shown as": "numbers"},
        ),
    log:
        "logs/plot_figure/{figure}.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=lambda w: code_digest("plot_figure", f"lamina.figures.{w.figure}"),
        about=lambda w: ABOUT[w.figure],
    shell:
        'python "$SCRIPTS/plot_figure.py" --figure {wildcards.figure} --tables {input.tables} --views {input.views}'
        " --output {output.svg} --data {output.data} 2> {log}"


rule collect_facts:
    input:
        paths.table("jobs"),
    output:
        "results/facts.json",
    log:
        "logs/collect_facts.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("collect_facts", "lamina.version"),
        seed=CONFIG.seed,
        config=" ".join(map(str, workflow.configfiles)),
        started=STARTED,
    shell:
        'python "$SCRIPTS/collect_facts.py" --seed {params.seed} --config {params.config:q} --started {params.started}'
        " --output {output} 2> {log}"


rule render_report:
    input:
        template="workflow/report/report.html.j2",
        included=["workflow/report/report.css", "workflow/report/report.js"],
        views="sql/views.sql",
        queries=sorted(map(str, Path("sql/queries").glob("*.sql"))),
        facts="results/facts.json",
        database="results/lamina.duckdb",
        tables=[paths.table(table) for table in TABLES],
        figures=[paths.figure(figure) for figure in FIGURES],
    output:
        report(
            "results/report.html",
            caption="../workflow/report/report.rst",
            category="Report",
            labels={"figure": "Everything in one page"},
        ),
    log:
        "logs/render_report.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("render_report"),
        told=arguments.report(CONFIG),
    shell:
        'python "$SCRIPTS/render_report.py" --tables {input.tables} --figures results/figures'
        " --template {input.template} --facts {input.facts} {params.told} --output {output} 2> {log}"


rule check_refusals:
    input:
        plans=paths.table("plans"),
        patches=paths.table("patches"),
        report="results/report.html",
    output:
        "results/refusals.txt",
    log:
        "logs/check_refusals.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("check_refusals"),
    shell:
        'python "$SCRIPTS/check_refusals.py" --plans {input.plans} --patches {input.patches}'
        " --output {output} 2> {log}"
