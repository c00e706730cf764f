# Needs: plans, patches and adapters of the variants, and the check that their calibration holds no test document. Gives:
# results/benchmarks/{model}/{calibration}/{task}/block={b}.parquet (one task on all variants of a calibration, one model
# load; calibration `none` is the unpruned model) and results/efficiency/{model}.parquet.


rule benchmark_task:
    input:
        manifest="results/models/{model}/manifest.json",
        gate=overlap_gate,
        variants=lambda w: variants_input(block_of(w)),
    output:
        table="results/benchmarks/{model}/{calibration}/{task}/block={block}.parquet",
        samples="results/benchmarks/{model}/{calibration}/{task}/block={block}.samples.parquet",
    log:
        "logs/benchmark_task/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_task/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(TASKS),
    threads: threads_each
    resources:
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=digest("benchmark_task"),
        packages=packages,
        options=lambda w: entry("benchmarks", "tasks", w.task),
        variants=lambda w: variants_json(block_of(w)),
    shell:
        "{ON_GPU} python {SCRIPTS}/benchmark_task.py --manifest {input.manifest}"
        " --model {wildcards.model} --task {wildcards.task} --task-options {params.options:q}"
        " --variants {params.variants:q} --code {params.code} --output {output.table} --samples {output.samples} 2> {log}"


rule benchmark_perplexity:
    input:
        manifest="results/models/{model}/manifest.json",
        gate=overlap_gate,
        variants=lambda w: variants_input(block_of(w)),
    output:
        table="results/benchmarks/{model}/{calibration}/{task}/block={block}.parquet",
        samples="results/benchmarks/{model}/{calibration}/{task}/block={block}.samples.parquet",
    log:
        "logs/benchmark_perplexity/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_perplexity/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(TEXTS),
    threads: threads_each
    resources:
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=digest("benchmark_perplexity"),
        packages=packages,
        options=lambda w: entry("benchmarks", "perplexity", w.task),
        variants=lambda w: variants_json(block_of(w)),
    shell:
        "{ON_GPU} python {SCRIPTS}/benchmark_perplexity.py --manifest {input.manifest}"
        " --model {wildcards.model} --name {wildcards.task} --options {params.options:q}"
        " --variants {params.variants:q} --code {params.code} --output {output.table} --samples {output.samples} 2> {log}"


rule benchmark_efficiency:
    input:
        manifest="results/models/{model}/manifest.json",
        variants=lambda w: variants_input(studies.efficiency_variants(CONFIG, w.model)),
    output:
        "results/efficiency/{model}.parquet",
    log:
        "logs/benchmark_efficiency/{model}.log",
    benchmark:
        "results/jobs/benchmark_efficiency/{model}.jsonl"
    threads: threads_alone
    resources:
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=digest("benchmark_efficiency"),
        packages=packages,
        options=lambda w: entry("benchmarks", "efficiency"),
        variants=lambda w: variants_json(studies.efficiency_variants(CONFIG, w.model)),
    shell:
        "{ON_GPU} python {SCRIPTS}/benchmark_efficiency.py --manifest {input.manifest}"
        " --model {wildcards.model} --variants {params.variants:q} --options {params.options:q} --code {params.code} --output {output} 2> {log}"
