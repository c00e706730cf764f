# Needs: plans, patches and adapters of the variants, and the check that their calibration holds no test document. Gives:
# results/benchmarks/{model}/{calibration}/{task}/block={b}.parquet (one task on all variants of a calibration, one model
# load; calibration `none` is the unpruned model), results/generation/... of the same form for what they write to it, and
# results/efficiency/{model}.parquet and results/drafts/{model}.parquet (all variants of a model, in turn with it).

# Read several times per job, as inputs and as a param.
block_of = cache(lambda *place: studies.block_variants(CONFIG, *place))


rule benchmark_task:
    input:
        manifest=paths.manifest("{model}"),
        gate=lambda w: inputs.overlap_gates(CONFIG, w, block_of(w.model, w.calibration, w.task, int(w.block))),
        variants=lambda w: inputs.variants(block_of(w.model, w.calibration, w.task, int(w.block))),
    output:
        table=paths.benchmark("{model}", "{calibration}", "{task}", "{block}"),
        samples=paths.benchmark_samples("{model}", "{calibration}", "{task}", "{block}"),
    log:
        "logs/benchmark_task/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_task/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(CONFIG.benchmarks.tasks),
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=code_digest("benchmark_task"),
        packages=package_digest("benchmark_task"),
        family=family,
        options=lambda w: arguments.benchmark(CONFIG, w),
        variants=lambda w: list(map(str, block_of(w.model, w.calibration, w.task, int(w.block)))),
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" --manifest {input.manifest} --task {wildcards.task}'
        " --variants {params.variants} {params.options}"
        " --code {params.code} --output {output.table} --samples {output.samples} 2> {log}"


use rule benchmark_task as benchmark_generation with:
    output:
        table=paths.generation("{model}", "{calibration}", "{task}", "{block}"),
        samples=paths.generation_samples("{model}", "{calibration}", "{task}", "{block}"),
    log:
        "logs/benchmark_generation/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_generation/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(name for name, task in CONFIG.benchmarks.tasks.items() if task.generate),
    params:
        code=code_digest("benchmark_generation"),
        packages=package_digest("benchmark_generation"),
        options=lambda w: arguments.generation(CONFIG, w),


use rule benchmark_task as benchmark_perplexity with:
    log:
        "logs/benchmark_perplexity/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_perplexity/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(CONFIG.benchmarks.perplexity),
    params:
        code=code_digest("benchmark_perplexity"),
        packages=package_digest("benchmark_perplexity"),


rule benchmark_efficiency:
    input:
        manifest=paths.manifest("{model}"),
        variants=lambda w: inputs.variants(studies.efficiency_variants(CONFIG, w.model)),
    output:
        paths.efficiency("{model}"),
    log:
        "logs/benchmark_efficiency/{model}.log",
    benchmark:
        "results/jobs/benchmark_efficiency/{model}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores(), alone=True)
    resources:
        gpu=gpus,
        mem_mb=memory,
        runtime=lambda w, input, attempt: minutes_of(studies.structures(CONFIG, w.model), input.manifest, attempt),
    params:
        code=code_digest("benchmark_efficiency"),
        packages=package_digest("benchmark_efficiency"),
        family=family,
        options=arguments.as_json(CONFIG.benchmarks.efficiency.options() if CONFIG.benchmarks.efficiency else {}),
        variants=lambda w: list(map(str, studies.efficiency_variants(CONFIG, w.model))),
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/benchmark_efficiency.py"'
        " --manifest {input.manifest} --variants {params.variants}"
        " --options {params.options:q} --code {params.code} --output {output} 2> {log}"


rule benchmark_drafts:
    input:
        manifest=paths.manifest("{model}"),
        gate=lambda w: inputs.draft_gates(CONFIG, w.model),
        variants=lambda w: inputs.variants(studies.draft_variants(CONFIG, w.model)),
    output:
        paths.drafts("{model}"),
    log:
        "logs/benchmark_drafts/{model}.log",
    benchmark:
        "results/jobs/benchmark_drafts/{model}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores(), alone=True)
    resources:
        gpu=gpus,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=code_digest("benchmark_drafts"),
        packages=package_digest("benchmark_drafts"),
        family=family,
        options=arguments.drafts(CONFIG),
        variants=lambda w: list(map(str, studies.draft_variants(CONFIG, w.model))),
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/benchmark_drafts.py"'
        " --manifest {input.manifest} --variants {params.variants}"
        " {params.options} --code {params.code} --output {output} 2> {log}"
