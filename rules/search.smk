# Needs: a model, a calibration, what a repair in the loop adds. Gives: results/searches/{key}.parquet, every set of units
# that was tried, and results/plans/{key}/removed={n}.json of selectors that search whole sets. One job finds the plans of
# all sizes; a killed one leaves what it measured in results/searches/{key}.log and goes on from there.


localrules:
    pick_plan,


rule search_plans:
    input:
        manifest=paths.manifest("{model}"),
        calibration=paths.calibration("{model}", "{calibration}"),
        data=lambda w: list(inputs.added_data(CONFIG, w, studies.looped(CONFIG, w.selector)).values()),
        donors=lambda w: list(inputs.donors(CONFIG, w).values()),
    output:
        table=paths.search(KEY),
        plans=paths.found_plans(KEY),
    log:
        "logs/search_plans/{model}/{calibration}/{selector}.log",
    benchmark:
        "results/jobs/search_plans/{model}/{calibration}/{selector}.jsonl"
    wildcard_constraints:
        selector=any_of(studies.searching(CONFIG)),
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=memory,
        # It tries some hundred sets.
        runtime=lambda _, input, attempt: minutes_of(100, input.manifest, attempt),
    params:
        code=lambda w: code_digest("search_plans", *arguments.search_modules(CONFIG, w)),
        packages=lambda w: package_digest("search_plans", *arguments.search_modules(CONFIG, w)),
        family=family,
        metric=lambda w: entry_digest(arguments.own_metric(CONFIG, w)),
        arguments=lambda w: arguments.search(CONFIG, w),
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/search_plans.py"'
        " --manifest {input.manifest} --calibration {input.calibration}"
        " {params.arguments} --code {params.code} --plans {output.plans} --output {output.table} 2> {log}"


rule pick_plan:
    input:
        paths.found_plans(KEY),
    output:
        paths.plan(KEY, "{removed}"),
    log:
        "logs/pick_plan/{model}/{calibration}/{selector}/removed={removed}.log",
    wildcard_constraints:
        selector=any_of(studies.searching(CONFIG)),
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("pick_plan"),
    shell:
        'python "$SCRIPTS/pick_plan.py" --plans {input} --removed {wildcards.removed} --output {output} 2> {log}'
