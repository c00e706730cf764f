# Needs: the files that make a variant, and its benchmarks where they have been measured. Gives, on demand:
# results/exports/{key}/removed={n}/{recovery}/{healing}/, a Hugging Face checkpoint (make export VARIANT=…).

# A name that fits no wildcard would only be a target that no rule makes.
with failures.refused(workflow.configfiles):
    for asked in exports.asked_for(sys.argv):
        exports.check(CONFIG, Variant.parse(asked))
        exports.check_form(os.environ)


localrules:
    export_variant,


rule export_variant:
    input:
        unpack(lambda w: inputs.export(CONFIG, w)),
    output:
        directory(paths.export(f"{KEY}/removed={{removed}}/{{recovery}}/{{healing}}")),
    log:
        "logs/export_variant/{model}/{calibration}/{selector}/removed={removed}/{recovery}/{healing}.log",
    wildcard_constraints:
        calibration=any_of(CONFIG.calibrations),
        selector=any_of(CONFIG.selectors),
        healing=any_of(CONFIG.healings, "none"),
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("export_variant"),
        packages=package_digest("export_variant"),
        family=family,
        variant=lambda w: str(inputs.variant(w)),
        form=os.environ.get("LAMINA_EXPORT_FORM") or "auto",
        shard=os.environ.get("LAMINA_EXPORT_SHARD") or "5GB",
    shell:
        'HF_HUB_OFFLINE=1 python "$SCRIPTS/export_variant.py" --variant {params.variant} --manifest {input.manifest}'
        " --benchmarks {input.benchmarks} --form {params.form} --max-shard-size {params.shard} --output {output} 2> {log}"
