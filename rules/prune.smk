# Needs: relevance scores, or the captured activations for runs of layers. Gives: results/plans/{key}/removed={n}.json.
# An iterative plan of size n is made from the plan of size n - 1 and a sweep of what that leaves.


localrules:
    prune_step,


rule prune_step:
    input:
        unpack(step_evidence),
        manifest="results/models/{model}/manifest.json",
    output:
        "results/plans/{model}/{calibration}/{selector}/removed={removed}.json",
    log:
        "logs/prune_step/{model}/{calibration}/{selector}/removed={removed}.log",
    params:
        code=prune_code,
        arguments=prune_arguments,
    shell:
        "python {SCRIPTS}/prune_step.py --manifest {input.manifest} {params.arguments} --output {output} 2> {log}"
