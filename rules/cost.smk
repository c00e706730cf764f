# Needs: what `prepare` gives. Gives: results/cost.json, the work of the configuration before any of it is done. Not a part
# of a run; `make plan` prints it.


localrules:
    estimate_cost,


rule estimate_cost:
    input:
        manifests=expand("results/models/{model}/manifest.json", model=CONFIG["models"]),
        calibrations=[f"results/calibrations/{m}/{c}.parquet" for m, c in studies.captures(CONFIG)],
        tasks=expand("results/tasks/{task}.parquet", task=TASKS),
    output:
        "results/cost.json",
    log:
        "logs/estimate_cost.log",
    params:
        code=digest("estimate_cost"),
        config=json.dumps(CONFIG, sort_keys=True),
    shell:
        "python {SCRIPTS}/estimate_cost.py --config {params.config:q} --manifests {input.manifests}"
        " --calibrations {input.calibrations} --tasks {input.tasks} --output {output} 2> {log}"
