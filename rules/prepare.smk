# Needs: the config, model folders or files or the hub, task files. Gives: results/models/{model}/manifest.json,
# results/models/{model}/checkpoint of a model that is a GGUF file,
# results/calibrations/{model}/{calibration}.parquet, results/tasks/{task}.parquet and the overlap checks.
# Only these rules may use the network.


localrules:
    dequantise_model,
    prepare_model,
    prepare_calibration,
    prepare_task,
    check_overlap,


rule dequantise_model:
    input:
        lambda w: CONFIG.models[w.model].source,
    output:
        directory(paths.checkpoint("{model}")),
    log:
        "logs/dequantise_model/{model}.log",
    benchmark:
        "results/jobs/dequantise_model/{model}.jsonl"
    conda:
        "../envs/lamina.yaml"
    params:
        code=code_digest("dequantise_model"),
        packages=package_digest("dequantise_model"),
        dtype=lambda w: CONFIG.models[w.model].dtype,
    message:
        "models.{wildcards.model}: dequantising {input} into {output}, once."
    shell:
        'python "$SCRIPTS/dequantise_model.py" --model {wildcards.model} --file {input:q} --dtype {params.dtype}'
        " --output {output} 2> {log}"


rule prepare_model:
    input:
        lambda w: paths.checkpoint(w.model) if is_gguf(CONFIG.models[w.model].source) else [],
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
        folder=lambda w, input: f"--folder {input}" if input else "",
    shell:
        'python "$SCRIPTS/prepare_model.py" --model {wildcards.model} --entry {params.entry:q}'
        " {params.folder} --output {output} 2> {log}"


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
