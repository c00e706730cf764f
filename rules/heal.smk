# Needs: a plan, its patch (unless the recovery is none), the calibration. Gives:
# results/adapters/{key}/removed={n}/{recovery}/{healing}/ with the adapter and its training curve.


rule heal_variant:
    input:
        manifest=paths.manifest("{model}"),
        calibration=paths.calibration("{model}", "{calibration}"),
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
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=lambda w: code_digest("heal_variant", f"lamina.healing.{CONFIG.healings[w.healing].method}"),
        packages=lambda w: package_digest("heal_variant", f"lamina.healing.{CONFIG.healings[w.healing].method}"),
        family=family,
        variant=lambda w: str(inputs.variant(w)),
        options=lambda w: arguments.as_json(CONFIG.healings[w.healing].options()),
        patch=lambda w, input: f"--patch {input.patch}" if input.patch else "",
        folder=lambda w, output: Path(output[0]).parent,
    shell:
        'on_gpu python "$SCRIPTS/heal_variant.py" --variant {params.variant} --manifest {input.manifest}'
        " --calibration {input.calibration} --plan {input.plan} {params.patch} --options {params.options:q}"
        " --code {params.code} --output {params.folder} 2> {log}"
