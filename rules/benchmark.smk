# Needs: plans, patches and adapters of the variants, and the check that their calibration holds no test document. Gives:
# results/benchmarks/{model}/{calibration}/{task}/block={b}.parquet (one task on all variants of a calibration, one model
# load; calibration `none` is the unpruned model), results/generation/... of the same form for their answers, and
# results/efficiency/{model}.parquet (all variants of a model, in turn with it).
from lamina.stages.benchmark_efficiency import BenchmarkEfficiency
from lamina.stages.benchmark_generation import BenchmarkGeneration
from lamina.stages.benchmark_perplexity import BenchmarkPerplexity
from lamina.stages.benchmark_task import BenchmarkTask

task_measured = described(BenchmarkTask, CONFIG)


rule benchmark_task:
    input:
        unpack(task_measured.inputs),
    output:
        table=BenchmarkTask.OUTPUTS["output"],
        samples=BenchmarkTask.OUTPUTS["samples"],
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
        mem_mb=task_measured.memory,
        runtime=task_measured.minutes,
    params:
        job=task_measured.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


generation_measured = described(BenchmarkGeneration, CONFIG)


rule benchmark_generation:
    input:
        unpack(generation_measured.inputs),
    output:
        table=BenchmarkGeneration.OUTPUTS["output"],
        samples=BenchmarkGeneration.OUTPUTS["samples"],
    log:
        "logs/benchmark_generation/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_generation/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(name for name, task in CONFIG.benchmarks.tasks.items() if task.generate),
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=generation_measured.memory,
        runtime=generation_measured.minutes,
    params:
        job=generation_measured.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


perplexity_measured = described(BenchmarkPerplexity, CONFIG)


rule benchmark_perplexity:
    input:
        unpack(perplexity_measured.inputs),
    output:
        table=BenchmarkPerplexity.OUTPUTS["output"],
        samples=BenchmarkPerplexity.OUTPUTS["samples"],
    log:
        "logs/benchmark_perplexity/{model}/{calibration}/{task}/block={block}.log",
    benchmark:
        "results/jobs/benchmark_perplexity/{model}/{calibration}/{task}/block={block}.jsonl"
    wildcard_constraints:
        task=any_of(CONFIG.benchmarks.perplexity),
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=perplexity_measured.memory,
        runtime=perplexity_measured.minutes,
    params:
        job=perplexity_measured.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


efficiency_measured = described(BenchmarkEfficiency, CONFIG)


rule benchmark_efficiency:
    input:
        unpack(efficiency_measured.inputs),
    output:
        BenchmarkEfficiency.OUTPUTS["output"],
    log:
        "logs/benchmark_efficiency/{model}.log",
    benchmark:
        "results/jobs/benchmark_efficiency/{model}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores(), alone=True)
    resources:
        gpu=gpus,
        mem_mb=efficiency_measured.memory,
        runtime=efficiency_measured.minutes,
    params:
        job=efficiency_measured.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
