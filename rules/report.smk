# Needs: everything that the studies measured. Gives: results/tables/{table}.parquet, results/lamina.duckdb,
# results/figures/{figure}.svg and results/report.html. Nothing here imports torch or needs a GPU.


localrules:
    gather_table,
    build_database,
    plot_figure,
    collect_facts,
    render_report,
    check_refusals,


rule gather_table:
    input:
        table_input,
    output:
        "results/tables/{table}.parquet",
    log:
        "logs/gather_table/{table}.log",
    wildcard_constraints:
        table=any_of(set(store.TABLES) - {"jobs"}),
    params:
        code=digest("gather_table"),
    shell:
        # A list of many files is longer than a command line may be.
        "printf '%s\\n' --input {input} > {log}.inputs;"
        " python {SCRIPTS}/gather_table.py --table {wildcards.table} @{log}.inputs --output {output} 2> {log}"


rule gather_jobs:
    input:
        # All that was run has left its record once the tables of results are there.
        expand("results/tables/{table}.parquet", table=sorted(set(store.TABLES) - {"jobs"})),
    output:
        "results/tables/jobs.parquet",
    log:
        "logs/gather_jobs.log",
    localrule: True
    params:
        code=digest("gather_table"),
    shell:
        "python {SCRIPTS}/gather_table.py --table jobs --folder results/jobs --output {output} 2> {log}"


rule build_database:
    input:
        views="sql/views.sql",
        tables=expand("results/tables/{table}.parquet", table=store.TABLES),
    output:
        "results/lamina.duckdb",
    log:
        "logs/build_database.log",
    params:
        code=digest("build_database"),
    shell:
        "python {SCRIPTS}/build_database.py --views {input.views} --tables results/tables --output {output} 2> {log}"


rule plot_figure:
    input:
        views="sql/views.sql",
        tables=expand("results/tables/{table}.parquet", table=sorted(set(store.TABLES) - {"jobs"})),
    output:
        report("results/figures/{figure}.svg", caption="../workflow/report/figure.rst", category="Figures"),
    log:
        "logs/plot_figure/{figure}.log",
    params:
        code=lambda w: digest("plot_figure", f"lamina.figures.{w.figure}"),
    shell:
        "python {SCRIPTS}/plot_figure.py --figure {wildcards.figure} --tables results/tables --views {input.views}"
        " --output {output} 2> {log}"


rule collect_facts:
    input:
        "results/tables/jobs.parquet",
    output:
        "results/facts.json",
    log:
        "logs/collect_facts.log",
    params:
        code=digest("collect_facts"),
        seed=CONFIG["seed"],
        config=" ".join(map(str, workflow.configfiles)),
    shell:
        "python {SCRIPTS}/collect_facts.py --seed {params.seed} --config {params.config:q} --started {STARTED} --output {output} 2> {log}"


rule render_report:
    input:
        template="workflow/report/report.html.j2",
        views="sql/views.sql",
        queries=sorted(map(str, Path("sql/queries").glob("*.sql"))),
        facts="results/facts.json",
        database="results/lamina.duckdb",
        tables=expand("results/tables/{table}.parquet", table=store.TABLES),
        figures=expand("results/figures/{figure}.svg", figure=FIGURES),
    output:
        report("results/report.html", caption="../workflow/report/report.rst", category="Report"),
    log:
        "logs/render_report.log",
    params:
        code=digest("render_report"),
    shell:
        "python {SCRIPTS}/render_report.py --tables results/tables --figures results/figures"
        " --template {input.template} --facts {input.facts} --output {output} 2> {log}"


rule check_refusals:
    input:
        plans="results/tables/plans.parquet",
        report="results/report.html",
    output:
        "results/refusals.txt",
    params:
        code=digest("check_refusals"),
    shell:
        "python {SCRIPTS}/check_refusals.py --plans {input.plans} --output {output}"
