# Needs: the files that make a variant, and its benchmarks where they have been measured. Gives, on demand:
# results/exports/{key}/removed={n}/{repair}/{healing}/, a Hugging Face checkpoint (make export VARIANT=…).
from lamina.stages.export_variant import ExportVariant

# A wrong name is refused here: Snakemake would only say that no rule makes the target.
with failures.refused(workflow.configfiles):
    for variant in exports.asked_for(sys.argv):
        exports.check(CONFIG, Variant.parse(variant))
        exports.check_form(os.environ)


localrules:
    export_variant,


exported = described(
    ExportVariant,
    CONFIG,
    form=os.environ.get("LAMINA_EXPORT_FORM") or "auto",
    shard=os.environ.get("LAMINA_EXPORT_SHARD") or "5GB",
)


rule export_variant:
    input:
        unpack(exported.inputs),
    output:
        directory(ExportVariant.OUTPUTS["output"]),
    log:
        "logs/export_variant/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}.log",
    wildcard_constraints:
        calibration=any_of(CONFIG.calibrations),
        selector=any_of(CONFIG.selectors),
        healing=any_of(CONFIG.healings, "none"),
    conda:
        "../envs/lamina.yaml"
    params:
        job=exported.told,
    shell:
        'HF_HUB_OFFLINE=1 python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
