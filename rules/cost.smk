# Needs: what `prepare` gives. Gives: results/cost.json, the work of the configuration before any of it is done. Not a part
# of a run; `make plan` prints it.


localrules:
    estimate_cost,


rule estimate_cost:
    input:
        manifests=[paths.manifest(model) for model in CONFIG.models],
        calibrations=[paths.calibration(*place) for place in studies.calibrations(CONFIG)],
        tasks=[paths.task(task) for task in CONFIG.benchmarks.tasks],
    output:
        "results/cost.json",
    log:
        "logs/estimate_cost.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("estimate_cost"),
        config=arguments.as_json(CONFIG.plain()),
    shell:
        'python "$SCRIPTS/estimate_cost.py" --config {params.config:q} --manifests {input.manifests}'
        " --calibrations {input.calibrations} --tasks {input.tasks} --output {output} 2> {log}"
