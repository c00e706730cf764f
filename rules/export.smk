# Needs: the files that make a variant, and its benchmarks where they have been measured. Gives, on
# demand: results/exports/{model}/{calibration}/{selector}/removed={n}/{repair}/{healing}/, a
# Hugging Face checkpoint or, from a GGUF file, a smaller GGUF file (make export VARIANT=…); and
# results/lm_eval/ of the same form, the scores and answers of a variant in lm-eval's files.
from lamina_workflow.stages import export, prepare


include: "inputs/export.smk"


# A wrong name is refused here: Snakemake would only say that no rule makes the target.
with preconditions.end_with_message(workflow.configfiles):
    for variant_text in export.requested_variants(sys.argv, paths.export("")):
        export.check_variant(CONFIG, Variant.parse(variant_text))
        export.check_form(os.environ, CONFIG, Variant.parse(variant_text))
    for variant_text in export.requested_variants(sys.argv, paths.lm_eval("")):
        export.check_measured(CONFIG, Variant.parse(variant_text))


localrules:
    export_variant,


FORM = {
    "form": os.environ.get("LAMINA_EXPORT_FORM") or "auto",
    "shard": os.environ.get("LAMINA_EXPORT_SHARD") or "5GB",
}


rule export_variant:
    input:
        file=gguf_file,
        manifest="results/models/{model}/manifest.json",
        plan="results/plans/{model}/{calibration}/{selector}/removed={removed}.json",
        patch=patch_of,
        adapter=adapter_of,
        benchmarks=existing_benchmarks,
    output:
        output=directory(
            "results/exports/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}"
        ),
    log:
        "logs/export_variant/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}.log",
    wildcard_constraints:
        calibration=any_of(CONFIG.calibrations),
        selector=any_of(CONFIG.selectors),
        healing=any_of(CONFIG.healings, "none"),
    conda:
        ENVIRONMENT
    params:
        **params_of(export.ExportVariant, **FORM),
    script:
        "../workflow/scripts/export_variant.py"


rule log_samples:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        made_of=files_of_variant,
        overlap=overlap_checks_of_variant,
        files=task_files_of_variant,
    output:
        output=directory(
            "results/lm_eval/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}"
        ),
    log:
        "logs/log_samples/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}.log",
    wildcard_constraints:
        selector=any_of(CONFIG.selectors, "none"),
        healing=any_of(CONFIG.healings, "none"),
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(export.LogSamples),
    params:
        **params_of(export.LogSamples),
        content=content(task_files_of_variant),
    script:
        "../workflow/scripts/log_samples.py"
