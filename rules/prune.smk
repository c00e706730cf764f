# Needs: a sweep, or the captured activations for runs of layers. Gives: results/plans/{key}/removed={n}.json.
# An iterative plan of size n is made from the plan of size n - 1 and a sweep of the model that this plan leaves. A plan
# depends on its own metric; gather.smk makes the table of all metrics. `also` are other calibrations and their sweeps.
from lamina.stages.prune_step import PruneStep


localrules:
    prune_step,


prune_described = described(PruneStep, CONFIG)


rule prune_step:
    input:
        unpack(prune_described.inputs),
    output:
        PruneStep.OUTPUTS["output"],
    log:
        "logs/prune_step/{model}/{calibration}/{selector}/removed={removed}.log",
    wildcard_constraints:
        # The others are searched (search.smk).
        selector=any_of(CONFIG.selectors.keys() - set(studies.searching(CONFIG))),
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    params:
        job=prune_described.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
