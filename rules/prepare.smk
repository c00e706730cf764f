# Needs: the config, model folders or the hub, task files. Gives: results/models/{model}/manifest.json,
# results/calibrations/{model}/{calibration}.parquet, results/tasks/{task}.parquet and the overlap checks.
# Only these rules may use the network.


localrules:
    prepare_model,
    prepare_calibration,
    prepare_task,
    check_overlap,


rule prepare_model:
    output:
        "results/models/{model}/manifest.json",
    log:
        "logs/prepare_model/{model}.log",
    benchmark:
        "results/jobs/prepare_model/{model}.jsonl"
    params:
        code=digest("prepare_model"),
        entry=lambda w: entry("models", w.model),
        # Touching weights changes nothing, editing them does.
        fingerprint=lambda w: fingerprint(Path(CONFIG["models"][w.model]["source"])),
    shell:
        "python {SCRIPTS}/prepare_model.py --model {wildcards.model} --entry {params.entry:q} --output {output} 2> {log}"


rule prepare_calibration:
    input:
        manifest="results/models/{model}/manifest.json",
        files=calibration_files,
    output:
        "results/calibrations/{model}/{calibration}.parquet",
    log:
        "logs/prepare_calibration/{model}/{calibration}.log",
    benchmark:
        "results/jobs/prepare_calibration/{model}/{calibration}.jsonl"
    params:
        code=digest("prepare_calibration"),
        packages=packages,
        entry=lambda w: entry("calibrations", w.calibration),
    shell:
        "python {SCRIPTS}/prepare_calibration.py --calibration {wildcards.calibration} --entry {params.entry:q}"
        " --manifest {input.manifest} --output {output} 2> {log}"


rule prepare_task:
    input:
        lambda w: task_files(w.task, benchmark_entry(w.task)),
    output:
        "results/tasks/{task}.parquet",
    log:
        "logs/prepare_task/{task}.log",
    benchmark:
        "results/jobs/prepare_task/{task}.jsonl"
    params:
        code=digest("prepare_task"),
        entry=lambda w: json.dumps(benchmark_entry(w.task), sort_keys=True),
    shell:
        "python {SCRIPTS}/prepare_task.py --task {wildcards.task} --entry {params.entry:q} --output {output} 2> {log}"


rule check_overlap:
    input:
        samples="results/calibrations/{model}/{calibration}.parquet",
        documents="results/tasks/{task}.parquet",
    output:
        "results/overlap/{model}/{calibration}/{task}.json",
    log:
        "logs/check_overlap/{model}/{calibration}/{task}.log",
    params:
        code=digest("check_overlap"),
    shell:
        "python {SCRIPTS}/check_overlap.py --calibration {wildcards.calibration} --task {wildcards.task}"
        " --samples {input.samples} --documents {input.documents} --output {output} 2> {log}"
