# Needs: all plans of one selector, its calibration, the unpruned model. Gives: results/patches/{key}/{recovery}.safetensors
# (one operator per run of removed layers and size) and the table of fits. One job fits all sizes: they share its passes.


rule fit_patch:
    input:
        manifest=paths.manifest("{model}"),
        calibration=paths.calibration("{model}", "{calibration}"),
        plans=lambda w: [
            paths.plan(inputs.key(w), n) for n in studies.sizes(CONFIG, w.model, w.calibration, w.selector, w.recovery)
        ],
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
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=lambda w: code_digest("fit_patch", f"lamina.recovery.{CONFIG.recoveries[w.recovery].method}"),
        packages=lambda w: package_digest("fit_patch", f"lamina.recovery.{CONFIG.recoveries[w.recovery].method}"),
        family=family,
        options=lambda w: arguments.as_json(CONFIG.recoveries[w.recovery].options()),
        seed=CONFIG.seed,
    shell:
        'on_gpu python "$SCRIPTS/fit_patch.py" --manifest {input.manifest} --calibration {input.calibration}'
        " --plans {input.plans} --recovery {wildcards.recovery} --options {params.options:q} --seed {params.seed}"
        " --code {params.code} --output {output.patch} --table {output.table} 2> {log}"
