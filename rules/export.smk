# Needs: the files that make a variant, and its benchmarks where they have been measured. Gives, on demand:
# results/exports/{key}/removed={n}/{recovery}/{healing}/, a Hugging Face checkpoint (make export VARIANT=…).


localrules:
    export_variant,


rule export_variant:
    input:
        unpack(export_input),
    output:
        directory("results/exports/{model}/{calibration}/{selector}/removed={removed}/{recovery}/{healing}"),
    log:
        "logs/export_variant/{model}/{calibration}/{selector}/removed={removed}/{recovery}/{healing}.log",
    wildcard_constraints:
        calibration=any_of(CONFIG["calibrations"]),
        selector=any_of(CONFIG["selectors"]),
        healing=any_of(CONFIG["healings"], "none"),
    params:
        code=digest("export_variant"),
        packages=packages,
        patch=lambda w, input: f"--patch {input.patch}" if "patch" in input.keys() else "",
        adapter=lambda w, input: f"--adapter {Path(input.adapter[0]).parent}" if "adapter" in input.keys() else "",
        form=os.environ.get("LAMINA_EXPORT_FORM") or "auto",
        shard=os.environ.get("LAMINA_EXPORT_SHARD") or "5GB",
    shell:
        "HF_HUB_OFFLINE=1 python {SCRIPTS}/export_variant.py --manifest {input.manifest} --plan {input.plan}"
        " {params.patch} {params.adapter} --recovery {wildcards.recovery} --healing {wildcards.healing}"
        " --benchmarks {input.benchmarks} --form {params.form} --max-shard-size {params.shard} --output {output} 2> {log}"
