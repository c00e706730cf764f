# Needs: a plan, its patch (unless the recovery is none), the calibration. Gives:
# results/adapters/{key}/removed={n}/{recovery}/{healing}/ with the adapter and its training curve.


rule heal_variant:
    input:
        manifest="results/models/{model}/manifest.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
        plan="results/plans/{model}/{calibration}/{selector}/removed={removed}.json",
        patch=branch(
            lambda w: w.recovery == "none",
            then=[],
            otherwise="results/patches/{model}/{calibration}/{selector}/{recovery}.safetensors",
        ),
    output:
        multiext(
            "results/adapters/{model}/{calibration}/{selector}/removed={removed}/{recovery}/{healing}/",
            "adapter_model.safetensors",
            "adapter_config.json",
            "training.parquet",
        ),
    log:
        "logs/heal_variant/{model}/{calibration}/{selector}/removed={removed}/{recovery}/{healing}.log",
    benchmark:
        "results/jobs/heal_variant/{model}/{calibration}/{selector}/removed={removed}/{recovery}/{healing}.jsonl"
    threads: threads_each
    resources:
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=lambda w: digest("heal_variant", f"lamina.healing.{CONFIG['healings'][w.healing]['method']}"),
        packages=packages,
        options=lambda w: entry("healings", w.healing),
        patch=lambda w, input: f"--patch {input.patch}" if input.patch else "",
        folder=lambda w, output: Path(output[0]).parent,
    shell:
        "{ON_GPU} python {SCRIPTS}/heal_variant.py --manifest {input.manifest}"
        " --calibration {input.calibration} --plan {input.plan} {params.patch} --recovery {wildcards.recovery}"
        " --healing {wildcards.healing} --options {params.options:q} --code {params.code} --output {params.folder} 2> {log}"
