# Needs: a model, a calibration, the plan that says what is already removed, and what a repair in the loop adds. Gives:
# results/sweeps/{key}/removed={n}.parquet: every remaining unit's removal, sample by sample.
# Sweeps of the unpruned model have the selector base/{pass}/{units} and are shared by all selectors and maps. What a
# selector scores beside the calibration of its plans has the selector for/{calibration of the plans}/{selector}.


localrules:
    gather_sweep,


rule sweep_units:
    input:
        manifest=paths.manifest("{model}"),
        calibration=paths.calibration("{model}", "{calibration}"),
        plan=lambda w: inputs.sweep_plan(w) or [],
        data=lambda w: list(inputs.added_data(CONFIG, w, studies.looped(CONFIG, w.selector)).values()),
        donors=lambda w: list(inputs.donors(CONFIG, w).values()),
    output:
        temp(paths.sweep_block(KEY, "{removed}", "{block}")),
    log:
        "logs/sweep_units/{model}/{calibration}/{selector}/removed={removed}/block={block}.log",
    benchmark:
        "results/jobs/sweep_units/{model}/{calibration}/{selector}/removed={removed}/block={block}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=memory,
        runtime=lambda w, input, attempt: (
            drawn_minutes(*asked, input.manifest, attempt)
            if (asked := studies.drawn(CONFIG, w.selector))
            else minutes(w, input, attempt)
        ),
    params:
        code=lambda w: code_digest("sweep_units", *arguments.sweep_modules(CONFIG, w)),
        packages=lambda w: package_digest("sweep_units", *arguments.sweep_modules(CONFIG, w)),
        family=family,
        metric=lambda w: entry_digest(arguments.early_metric(CONFIG, w)),
        arguments=lambda w: arguments.sweep(CONFIG, w),
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/sweep_units.py"'
        " --manifest {input.manifest} --calibration {input.calibration}"
        " {params.arguments} --code {params.code} --output {output} 2> {log}"


rule gather_sweep:
    input:
        lambda w: inputs.sweep_blocks(CONFIG, w),
    output:
        paths.sweep(KEY, "{removed}"),
    log:
        "logs/gather_sweep/{model}/{calibration}/{selector}/removed={removed}.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("gather_sweep"),
    shell:
        'python "$SCRIPTS/gather_sweep.py" --blocks {input} --output {output} 2> {log}'
