# Needs: what `prepare` gives. Gives: results/cost.json, the work of the configuration before any of it is done. `make plan`
# prints it, and the time that a run has left is counted from it.
from lamina.stages.estimate_cost import EstimateCost


localrules:
    estimate_cost,


cost = described(EstimateCost, CONFIG)


rule estimate_cost:
    input:
        unpack(cost.inputs),
    output:
        EstimateCost.OUTPUTS["output"],
    log:
        "logs/estimate_cost.log",
    priority: 100
    conda:
        "../envs/lamina.yaml"
    params:
        job=cost.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
