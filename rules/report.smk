# Needs: the tables and the database. Gives: results/figures/{figure}.svg and .csv, results/report.html, and
# results/refusals.txt, which says what was asked for and refused.
from lamina.stages.check_refusals import CheckRefusals
from lamina.stages.collect_facts import CollectFacts
from lamina.stages.plot_figure import PlotFigure
from lamina.stages.render_report import RenderReport


localrules:
    plot_figure,
    collect_facts,
    render_report,
    check_refusals,


figure = described(PlotFigure, CONFIG)


rule plot_figure:
    input:
        unpack(figure.inputs),
    output:
        svg=report(
            PlotFigure.OUTPUTS["output"],
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels=lambda w: {"figure": TITLES[w.figure], "shown as": "picture"},
        ),
        data=report(
            PlotFigure.OUTPUTS["data"],
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels=lambda w: {"figure": TITLES[w.figure], "shown as": "numbers"},
        ),
    log:
        "logs/plot_figure/{figure}.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=figure.told,
        about=lambda w: ABOUT[w.figure],
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


facts = described(CollectFacts, CONFIG, files=" ".join(map(str, workflow.configfiles)), started=STARTED)


rule collect_facts:
    input:
        unpack(facts.inputs),
    output:
        CollectFacts.OUTPUTS["output"],
    log:
        "logs/collect_facts.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=facts.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


rendered = described(RenderReport, CONFIG)


rule render_report:
    input:
        unpack(rendered.inputs),
    output:
        report(
            RenderReport.OUTPUTS["output"],
            caption="../workflow/report/report.rst",
            category="Report",
            labels={"figure": "Everything in one page"},
        ),
    log:
        "logs/render_report.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=rendered.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


refusals = described(CheckRefusals, CONFIG)


rule check_refusals:
    input:
        unpack(refusals.inputs),
    output:
        CheckRefusals.OUTPUTS["output"],
    log:
        "logs/check_refusals.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=refusals.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
