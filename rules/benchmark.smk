# Needs: plans, patches and adapters of the variants, and the checks that none of their calibrations
# contains a test document.
# Gives: results/benchmarks/{model}/{calibration}/{task}/block={b}.parquet (one task on one block of
# a calibration's variants, with one model load; calibration `none` is the base model),
# results/generation/ of the same form for generated answers, and
# results/efficiency/{model}.parquet (all variants of a model, timed in turn with the base model.
# Healings are left out: merged, they cost nothing).
from lamina_workflow.stages import benchmark


include: "inputs/benchmark.smk"


rule benchmark_task:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        made_of=files_of_block,
        overlap=overlap_checks,
        files=task_files,
    output:
        output="results/benchmarks/{model}/{calibration}/{task}/block={block}.parquet",
        samples="results/benchmarks/{model}/{calibration}/{task}/block={block}.samples.parquet",
    log:
        "logs/benchmark_task/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_task/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(CONFIG.benchmarks.tasks),
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(benchmark.BenchmarkTask),
    params:
        **params_of(benchmark.BenchmarkTask),
        content=content(task_files),
    script:
        "../workflow/scripts/benchmark_task.py"


rule benchmark_generation:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        made_of=files_of_block,
        overlap=overlap_checks,
        files=task_files,
    output:
        output="results/generation/{model}/{calibration}/{task}/block={block}.parquet",
        samples="results/generation/{model}/{calibration}/{task}/block={block}.samples.parquet",
    log:
        "logs/benchmark_generation/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_generation/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(name for name, task in CONFIG.benchmarks.tasks.items() if task.generate),
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(benchmark.BenchmarkGeneration),
    params:
        **params_of(benchmark.BenchmarkGeneration),
        content=content(task_files),
    script:
        "../workflow/scripts/benchmark_generation.py"


rule benchmark_perplexity:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        made_of=files_of_block,
        overlap=overlap_checks,
        documents="results/tasks/{task}.parquet",
    output:
        output="results/benchmarks/{model}/{calibration}/{task}/block={block}.parquet",
        samples="results/benchmarks/{model}/{calibration}/{task}/block={block}.samples.parquet",
    log:
        "logs/benchmark_perplexity/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_perplexity/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(CONFIG.benchmarks.perplexity),
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(benchmark.BenchmarkPerplexity),
    params:
        **params_of(benchmark.BenchmarkPerplexity),
    script:
        "../workflow/scripts/benchmark_perplexity.py"


rule benchmark_efficiency:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        made_of=lambda w: files_of_variants(requests.efficiency_variants(CONFIG, w.model)),
    output:
        output="results/efficiency/{model}.parquet",
    log:
        "logs/benchmark_efficiency/{model}.log",
    benchmark:
        "results/jobs/benchmark_efficiency/{model}.jsonl"
    conda:
        ENVIRONMENT
    threads: every_core
    resources:
        **resources_of(benchmark.BenchmarkEfficiency),
    params:
        **params_of(benchmark.BenchmarkEfficiency),
    script:
        "../workflow/scripts/benchmark_efficiency.py"
