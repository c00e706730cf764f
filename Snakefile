# lamina: which layers matter for your task, which can go, how much of the damage can be repaired.
#
# Path grammar, under results/ ({key} = {model}/{calibration}/{selector}):
#   models/{model}  calibrations/{model}/{calibration}  tasks/{task}  overlap/{model}/{calibration}/{task}
#   activations/{model}/{calibration}  diagnoses/{model}/{calibration}/{diagnosis}
#   sweeps/{key}/removed={n}  relevance/{key}/removed={n}  plans/{key}/removed={n}  searches/{key}
#   patches/{key}/{repair}  adapters/{key}/removed={n}/{repair}/{healing}
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
include: "rules/prepare.smk"
include: "rules/capture.smk"
include: "rules/sweep.smk"
include: "rules/prune.smk"
include: "rules/repair.smk"
include: "rules/heal.smk"
include: "rules/benchmark.smk"
include: "rules/report.smk"
include: "rules/export.smk"
include: "rules/reference.smk"
include: "rules/targets.smk"


localrules:
    all,


rule all:
    default_target: True
    input:
        "results/report.html",
        "results/refusals.txt",
        "results/lamina.duckdb",
        expand("results/tables/{table}.parquet", table=TABLES),
        expand("results/figures/{figure}.{form}", figure=FIGURES, form=["svg", "csv"]),
