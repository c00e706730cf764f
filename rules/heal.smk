# Needs: a plan, its patch (unless the recovery is none), the calibration and those that the healing adds to it. Gives:
# results/adapters/{key}/removed={n}/{recovery}/{healing}/ with what was trained and its curve. Beside the outputs stands
# .progress.safetensors while it trains, which Snakemake does not know and so does not delete: a killed job goes on there.


rule heal_variant:
    input:
        manifest=paths.manifest("{model}"),
        calibration=paths.calibration("{model}", "{calibration}"),
        data=lambda w: list(inputs.healing_data(CONFIG, w).values()),
        plan=paths.plan(KEY, "{removed}"),
        patch=branch(
            lambda w: w.recovery == "none",
            then=[],
            otherwise=paths.patch(KEY, "{recovery}"),
        ),
    output:
        paths.adapter_weights(paths.adapter(KEY, "{removed}", "{recovery}", "{healing}")),
        paths.training(paths.adapter(KEY, "{removed}", "{recovery}", "{healing}")),
    log:
        "logs/heal_variant/{model}/{calibration}/{selector}/removed={removed}/{recovery}/{healing}.log",
    benchmark:
        "results/jobs/heal_variant/{model}/{calibration}/{selector}/removed={removed}/{recovery}/{healing}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=lambda w: code_digest("heal_variant", f"lamina.healing.{CONFIG.healings[w.healing].method}"),
        packages=lambda w: package_digest("heal_variant", f"lamina.healing.{CONFIG.healings[w.healing].method}"),
        family=family,
        variant=lambda w: str(inputs.variant(w)),
        options=lambda w: arguments.as_json(CONFIG.healings[w.healing].options()),
        patch=lambda w, input: f"--patch {input.patch}" if input.patch else "",
        data=lambda w: arguments.heal(CONFIG, w),
        folder=lambda w, output: Path(output[0]).parent,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/heal_variant.py"'
        " --variant {params.variant} --manifest {input.manifest}"
        " --calibration {input.calibration} --plan {input.plan} {params.patch} --options {params.options:q}{params.data}"
        " --code {params.code} --output {params.folder} 2> {log}"
