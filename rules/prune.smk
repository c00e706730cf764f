# Needs: a sweep, or the captured activations for runs of layers. Gives: results/plans/{key}/removed={n}.json.
# An iterative plan of size n is made from the plan of size n - 1 and a sweep of what that leaves. A plan depends on its
# own metric; the table of all metrics is gathered beside it (report.smk). `also` are other calibrations and their sweeps.


localrules:
    prune_step,


rule prune_step:
    input:
        unpack(lambda w: inputs.step_evidence(CONFIG, w)),
        manifest=paths.manifest("{model}"),
        calibration=paths.calibration("{model}", "{calibration}"),
        donors=lambda w: list(inputs.donors(CONFIG, w).values()),
        also=lambda w: [file for files in inputs.beside(CONFIG, w).values() for file in files.values()],
    output:
        paths.plan(KEY, "{removed}"),
    log:
        "logs/prune_step/{model}/{calibration}/{selector}/removed={removed}.log",
    wildcard_constraints:
        # The others are searched (search.smk).
        selector=any_of(CONFIG.selectors.keys() - set(studies.searching(CONFIG))),
    conda:
        "../envs/lamina.yaml"
    params:
        code=lambda w: code_digest("prune_step", *arguments.prune_modules(CONFIG, w)),
        packages=lambda w: package_digest("prune_step", *arguments.prune_modules(CONFIG, w)),
        metric=lambda w: entry_digest(arguments.own_metric(CONFIG, w)),
        arguments=lambda w: arguments.prune(CONFIG, w),
    shell:
        'python "$SCRIPTS/prune_step.py" --manifest {input.manifest} --calibration {input.calibration}'
        " {params.arguments} --output {output} 2> {log}"
