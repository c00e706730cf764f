# lamina: which layers matter for your task, which can go, how much of the damage can be repaired.
#
# Path grammar, under results/ ({key} = {model}/{calibration}/{selector}):
#   models/{model}  calibrations/{model}/{calibration}  activations/{model}/{calibration}
#   diagnoses/{model}/{calibration}/{diagnosis}
#   sweeps/{key}/removed={n}  relevance/{key}/removed={n}  plans/{key}/removed={n}  searches/{key}
#   fits/{key}  patches/{key}/{repair}  adapters/{key}/removed={n}/{repair}/{healing}
#   benchmarks/{model}/{calibration}/{task}/block={b}  generation/{model}/{calibration}/{task}/block={b}
#   efficiency/{model}  tables/{table}  figures/{figure}  exports/{key}/removed={n}/{repair}/{healing}
import os

from snakemake.utils import min_version

min_version("9.27")


report: "workflow/report/workflow.rst"


# A file given with --configfile replaces this one; Snakemake would merge the two.
if not workflow.config_settings.configfiles:

    configfile: "config/config.yaml"


# Only --sdm apptainer starts it; envs/Containerfile makes it.
container: os.environ.get("LAMINA_CONTAINER") or "envs/lamina.sif"


include: "rules/common.smk"
include: "rules/machine.smk"
include: "rules/prepare.smk"
include: "rules/cost.smk"
include: "rules/capture.smk"
include: "rules/sweep.smk"
include: "rules/prune.smk"
include: "rules/search.smk"
include: "rules/repair.smk"
include: "rules/heal.smk"
include: "rules/diagnose.smk"
include: "rules/benchmark.smk"
include: "rules/gather.smk"
include: "rules/compare.smk"
include: "rules/report.smk"
include: "rules/export.smk"
include: "rules/reference.smk"
include: "rules/targets.smk"


rule all:
    default_target: True
    input:
        "results/report.html",
        "results/refusals.txt",
        "results/cost.json",
        REPORTED,
