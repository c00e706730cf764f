# Needs: a model, a calibration, what a repair in the loop adds. Gives: results/searches/{key}.parquet, every set of
# units that was tried, and results/plans/{key}/removed={n}.json of selectors that search whole sets. One job finds the
# plans of all sizes; a killed one leaves what it measured in results/searches/{key}.log and goes on from there.
from lamina.stages.pick_plan import PickPlan
from lamina.stages.search_plans import SearchPlans


localrules:
    pick_plan,


search = described(SearchPlans, CONFIG)


rule search_plans:
    input:
        unpack(search.inputs),
    output:
        table=SearchPlans.OUTPUTS["output"],
        plans=SearchPlans.OUTPUTS["plans"],
    log:
        "logs/search_plans/{model}/{calibration}/{selector}.log",
    benchmark:
        "results/jobs/search_plans/{model}/{calibration}/{selector}.jsonl"
    wildcard_constraints:
        selector=any_of(studies.searching(CONFIG)),
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=search.memory,
        runtime=search.minutes,
    params:
        job=search.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


picked = described(PickPlan, CONFIG)


rule pick_plan:
    input:
        unpack(picked.inputs),
    output:
        PickPlan.OUTPUTS["output"],
    log:
        "logs/pick_plan/{model}/{calibration}/{selector}/removed={removed}.log",
    wildcard_constraints:
        selector=any_of(studies.searching(CONFIG)),
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    params:
        job=picked.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
