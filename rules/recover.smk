# Needs: all plans of one selector, its calibration and those that the recovery adds to it, the unpruned model. Gives:
# results/patches/{key}/{recovery}.safetensors (what was fitted for each run of removed layers and size) and the table of
# fits. One job fits all sizes: they share its passes.

# Read several times per job.
sizes_of = cache(lambda *place: studies.sizes(CONFIG, *place))


rule fit_patch:
    input:
        manifest=paths.manifest("{model}"),
        calibration=paths.calibration("{model}", "{calibration}"),
        data=lambda w: list(inputs.added_data(CONFIG, w, w.recovery).values()),
        plans=lambda w: [paths.plan(inputs.key(w), n) for n in sizes_of(w.model, w.calibration, w.selector, w.recovery)],
    output:
        patch=paths.patch(KEY, "{recovery}"),
        table=paths.patch_table(KEY, "{recovery}"),
    log:
        "logs/fit_patch/{model}/{calibration}/{selector}/{recovery}.log",
    benchmark:
        "results/jobs/fit_patch/{model}/{calibration}/{selector}/{recovery}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=lambda w, input, attempt: fit_memory(
            sum(sizes_of(w.model, w.calibration, w.selector, w.recovery)),
            bool(CONFIG.recoveries[w.recovery].automatic(w.calibration)),
            input.manifest,
            attempt,
        ),
        runtime=minutes,
    params:
        code=lambda w: code_digest("fit_patch", *arguments.recover_modules(CONFIG, w)),
        packages=lambda w: package_digest("fit_patch", *arguments.recover_modules(CONFIG, w)),
        family=family,
        arguments=lambda w: arguments.recover(CONFIG, w),
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/fit_patch.py"'
        " --manifest {input.manifest} --calibration {input.calibration}"
        " --plans {input.plans} {params.arguments}"
        " --code {params.code} --output {output.patch} --table {output.table} 2> {log}"
