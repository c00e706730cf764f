# Needs: all plans of one selector, its calibration, the unpruned model. Gives: results/patches/{key}/{recovery}.safetensors
# (one operator per run of removed layers and size) and the table of fits. One job fits all sizes: they share its passes.


rule fit_patch:
    input:
        manifest="results/models/{model}/manifest.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
        plans=lambda w: [
            f"results/plans/{w.model}/{w.calibration}/{w.selector}/removed={n}.json"
            for n in studies.sizes(CONFIG, w.model, w.calibration, w.selector, w.recovery)
        ],
    output:
        patch="results/patches/{model}/{calibration}/{selector}/{recovery}.safetensors",
        table="results/patches/{model}/{calibration}/{selector}/{recovery}.parquet",
    log:
        "logs/fit_patch/{model}/{calibration}/{selector}/{recovery}.log",
    benchmark:
        "results/jobs/fit_patch/{model}/{calibration}/{selector}/{recovery}.jsonl"
    threads: threads_each
    resources:
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=lambda w: digest("fit_patch", f"lamina.recovery.{CONFIG['recoveries'][w.recovery]['method']}"),
        packages=packages,
        options=lambda w: entry("recoveries", w.recovery),
        seed=CONFIG["seed"],
    shell:
        "{ON_GPU} python {SCRIPTS}/fit_patch.py --manifest {input.manifest}"
        " --calibration {input.calibration} --plans {input.plans} --recovery {wildcards.recovery}"
        " --recovery-options {params.options:q} --seed {params.seed} --code {params.code} --output {output.patch} --table {output.table} 2> {log}"
