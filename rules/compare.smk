# Needs: tables of what was measured. Gives: the tables of how metrics, tasks and selectors compare, with their errors:
# agreements, dissociations and comparisons.
from lamina.stages.compare_metrics import CompareMetrics
from lamina.stages.compare_selectors import CompareSelectors
from lamina.stages.compare_tasks import CompareTasks


localrules:
    compare_metrics,
    compare_tasks,
    compare_selectors,


metrics_compared = described(CompareMetrics, CONFIG)


rule compare_metrics:
    input:
        unpack(metrics_compared.inputs),
    output:
        CompareMetrics.OUTPUTS["output"],
    log:
        "logs/compare_metrics.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=metrics_compared.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


tasks_compared = described(CompareTasks, CONFIG)


rule compare_tasks:
    input:
        unpack(tasks_compared.inputs),
    output:
        CompareTasks.OUTPUTS["output"],
    log:
        "logs/compare_tasks.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=tasks_compared.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


selectors_compared = described(CompareSelectors, CONFIG)


rule compare_selectors:
    input:
        unpack(selectors_compared.inputs),
    output:
        CompareSelectors.OUTPUTS["output"],
    log:
        "logs/compare_selectors.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=selectors_compared.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
