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
        paths.manifest("{model}"),
    log:
        "logs/prepare_model/{model}.log",
    benchmark:
        "results/jobs/prepare_model/{model}.jsonl"
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("prepare_model"),
        entry=lambda w: arguments.model(CONFIG, w),
        # Touching weights changes nothing, editing them does.
        fingerprint=lambda w: fingerprint(Path(CONFIG.models[w.model].source)),
    shell:
        'python "$SCRIPTS/prepare_model.py" --model {wildcards.model} --entry {params.entry:q} --output {output} 2> {log}'


rule prepare_calibration:
    input:
        manifest=paths.manifest("{model}"),
        files=lambda w: inputs.calibration_files(CONFIG, w),
    output:
        paths.calibration("{model}", "{calibration}"),
    log:
        "logs/prepare_calibration/{model}/{calibration}.log",
    benchmark:
        "results/jobs/prepare_calibration/{model}/{calibration}.jsonl"
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("prepare_calibration"),
        packages=package_digest("prepare_calibration"),
        entry=lambda w: arguments.as_json(CONFIG.calibrations[w.calibration].options()),
        parts=lambda w: arguments.parts(CONFIG, w.calibration),
    shell:
        'python "$SCRIPTS/prepare_calibration.py" --calibration {wildcards.calibration} --entry {params.entry:q}'
        " {params.parts} --manifest {input.manifest} --output {output} 2> {log}"


rule prepare_task:
    input:
        lambda w: inputs.local_files(w.task, inputs.tested(CONFIG, w.task)),
    output:
        paths.task("{task}"),
    log:
        "logs/prepare_task/{task}.log",
    benchmark:
        "results/jobs/prepare_task/{task}.jsonl"
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("prepare_task"),
        entry=lambda w: arguments.as_json(inputs.tested(CONFIG, w.task).options()),
    shell:
        'python "$SCRIPTS/prepare_task.py" --task {wildcards.task} --entry {params.entry:q} --output {output} 2> {log}'


rule check_overlap:
    input:
        samples=paths.calibration("{model}", "{calibration}"),
        documents=paths.task("{task}"),
    output:
        paths.overlap("{model}", "{calibration}", "{task}"),
    log:
        "logs/check_overlap/{model}/{calibration}/{task}.log",
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("check_overlap"),
    shell:
        'python "$SCRIPTS/check_overlap.py" --calibration {wildcards.calibration} --task {wildcards.task}'
        " --samples {input.samples} --documents {input.documents} --output {output} 2> {log}"
