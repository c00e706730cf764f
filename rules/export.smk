# Needs: the files that make a variant, and its benchmarks where they have been measured. Gives, on demand:
# results/exports/{model}/{calibration}/{selector}/removed={n}/{repair}/{healing}/, a Hugging Face checkpoint or, from a
# GGUF file, another one (make export VARIANT=…).
from lamina.stages import export, prepare

# A wrong name is refused here: Snakemake would only say that no rule makes the target.
with preconditions.refused(workflow.configfiles):
    for variant in export.asked_for(sys.argv):
        export.check(CONFIG, Variant.parse(variant))
        export.check_form(os.environ, CONFIG, Variant.parse(variant))


localrules:
    export_variant,


FORM = {
    "form": os.environ.get("LAMINA_EXPORT_FORM") or "auto",
    "shard": os.environ.get("LAMINA_EXPORT_SHARD") or "5GB",
}


def adapter_of(w):
    """What the healing of a variant trained; nothing without one."""
    folder = f"results/adapters/{w.model}/{w.calibration}/{w.selector}/removed={w.removed}/{w.repair}/{w.healing}"
    return paths.adapter_weights(folder) if w.healing != "none" else []


def benchmarks_there(w):
    """Those benchmarks of the variant and of the unpruned model that exist: the export starts none."""
    blocks = [block for block in studies.benchmark_blocks(CONFIG) if block[0] == w.model]
    files = [paths.benchmark(*block) for block in blocks if block[1] in (w.calibration, "none")]
    return [file for file in files if Path(file).exists()]


def gguf_file(w):
    """The GGUF file of the base model, or its shards, that FORM=gguf takes layers out of."""
    return prepare.gguf_files(CONFIG.models[w.model]) if FORM["form"] == "gguf" else []


rule export_variant:
    input:
        file=gguf_file,
        manifest="results/models/{model}/manifest.json",
        plan="results/plans/{model}/{calibration}/{selector}/removed={removed}.json",
        patch=patch_of,
        adapter=adapter_of,
        benchmarks=benchmarks_there,
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
        options=options(export.ExportVariant, **FORM),
        code=code(export.ExportVariant, **FORM),
    script:
        "../workflow/scripts/export_variant.py"
