# Needs: the tables and the database. Gives: results/figures/{figure}.svg and .csv, results/report.html, and
# results/refusals.txt, which says what was asked for and refused.


localrules:
    plot_figure,
    collect_facts,
    render_report,
    check_refusals,


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
