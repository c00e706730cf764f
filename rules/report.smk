# Needs: everything that the studies measured. Gives, under results/: tables/{table}.parquet,
# lamina.duckdb, figures/{figure}.svg and .csv, report.html, and refusals.txt (what was requested
# and refused). Nothing here imports torch or needs a GPU.
#
# Which rules write the files that a table is gathered from:
#   activations           capture_activations
#   benchmarks            benchmark_task, benchmark_perplexity, benchmark_generation
#   benchmark_samples     the same
#   calibrations          prepare_calibration
#   diagnoses             diagnose_layers
#   efficiency            benchmark_efficiency
#   gates, handles        none: the configuration alone
#   models, layer_sizes   prepare_model
#   patches               fit_patch
#   plans                 prune_step, pick_plan
#   relevance             score_relevance
#   searches              search_plans
#   shared_documents      check_overlap
#   sweeps                gather_sweep
#   training              heal_variant
from lamina_workflow.report import queries
from lamina_workflow.stages import report as page
from lamina.tables import TABLES


include: "inputs/report.smk"


FIGURES = page.list_figures(CONFIG)  # with the tables that each reads
FIGURE_QUERIES = declared_literals("lamina_workflow.report.figures", "QUERIES")  # likewise
FIGURE_TITLES = declared_literals("lamina_workflow.report.figures", "TITLE")
# Tables that are computed from other tables.
COMPUTED_TABLES = ["agreements", "dissociations", "comparisons"]
CONFIG_FILES = " ".join(map(str, workflow.configfiles))
VIEWS = queries.list_view_files()


localrules:
    gather_table,
    gather_jobs,
    compare_metrics,
    compare_tasks,
    compare_selectors,
    build_database,
    plot_figure,
    collect_facts,
    render_report,
    check_refusals,


rule gather_table:
    input:
        parts=parts_of_table,
    output:
        output="results/tables/{table}.parquet",
    log:
        "logs/gather_table/{table}.log",
    wildcard_constraints:
        table=any_of(TABLES.keys() - {"jobs", *COMPUTED_TABLES}),
    conda:
        ENVIRONMENT
    params:
        **params_of(page.GatherTable),
    script:
        "../workflow/scripts/gather_table.py"


# It waits for the other tables: by then, all other jobs have written their records.
rule gather_jobs:
    input:
        expand("results/tables/{table}.parquet", table=TABLES.keys() - {"jobs"}),
    output:
        output="results/tables/jobs.parquet",
    log:
        "logs/gather_jobs.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(page.GatherJobs),
    script:
        "../workflow/scripts/gather_jobs.py"


rule compare_metrics:
    input:
        relevance="results/tables/relevance.parquet",
        sweeps="results/tables/sweeps.parquet",
        calibrations="results/tables/calibrations.parquet",
    output:
        output="results/tables/agreements.parquet",
    log:
        "logs/compare_metrics.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(page.CompareMetrics),
    script:
        "../workflow/scripts/compare_metrics.py"


rule compare_tasks:
    input:
        sweeps="results/tables/sweeps.parquet",
        calibrations="results/tables/calibrations.parquet",
    output:
        output="results/tables/dissociations.parquet",
    log:
        "logs/compare_tasks.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(page.CompareTasks),
    script:
        "../workflow/scripts/compare_tasks.py"


rule compare_selectors:
    input:
        views=VIEWS,
        tables=expand(
            "results/tables/{table}.parquet",
            table=["calibrations", "plans", "benchmarks", "benchmark_samples"],
        ),
    output:
        output="results/tables/comparisons.parquet",
    log:
        "logs/compare_selectors.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(page.CompareSelectors),
    script:
        "../workflow/scripts/compare_selectors.py"


rule build_database:
    input:
        views=VIEWS,
        tables=expand("results/tables/{table}.parquet", table=TABLES),
    output:
        output="results/lamina.duckdb",
    log:
        "logs/build_database.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(page.BuildDatabase, study=STUDY),
    script:
        "../workflow/scripts/build_database.py"


rule plot_figure:
    input:
        views=VIEWS,
        queries=lambda w: [queries.locate_query(name) for name in FIGURE_QUERIES[w.figure]],
        tables=lambda w: expand("results/tables/{table}.parquet", table=FIGURES[w.figure]),
    output:
        output=report(
            "results/figures/{figure}.svg",
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels=lambda w: {"figure": FIGURE_TITLES[w.figure], "shown as": "picture"},
        ),
        data=report(
            "results/figures/{figure}.csv",
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels=lambda w: {"figure": FIGURE_TITLES[w.figure], "shown as": "numbers"},
        ),
    log:
        "logs/plot_figure/{figure}.log",
    wildcard_constraints:
        figure=any_of(FIGURES),
    conda:
        ENVIRONMENT
    params:
        **params_of(page.PlotFigure),
        about=lambda w: queries.list_comment_lines(queries.read_query(FIGURE_QUERIES[w.figure][0])),
    script:
        "../workflow/scripts/plot_figure.py"


rule collect_facts:
    input:
        "results/tables/jobs.parquet",
    output:
        output="results/facts.json",
    log:
        "logs/collect_facts.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(page.CollectFacts, files=CONFIG_FILES, started=STARTED),
    script:
        "../workflow/scripts/collect_facts.py"


rule render_report:
    input:
        template=paths.locate("workflow/report/report.html.j2"),
        included=[
            paths.locate(f"workflow/report/{name}")
            for name in ("report.css", "report.js", "explorer.json")
        ],
        views=VIEWS,
        queries=sorted(map(str, Path(paths.locate("sql/queries")).glob("*.sql"))),
        facts="results/facts.json",
        database="results/lamina.duckdb",
        tables=expand("results/tables/{table}.parquet", table=TABLES),
        figures=expand("results/figures/{figure}.svg", figure=FIGURES),
        numbers=expand("results/figures/{figure}.csv", figure=FIGURES),
        judged=existing_judgements,
    output:
        output=report(
            "results/report.html",
            caption="../workflow/report/report.rst",
            category="Report",
            labels={"figure": "Everything in one page"},
        ),
    log:
        "logs/render_report.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(page.RenderReport),
    script:
        "../workflow/scripts/render_report.py"


rule check_refusals:
    input:
        "results/report.html",
        plans="results/tables/plans.parquet",
        patches="results/tables/patches.parquet",
    output:
        output="results/refusals.txt",
    log:
        "logs/check_refusals.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(page.CheckRefusals),
    script:
        "../workflow/scripts/check_refusals.py"
