# Needs: a model, a calibration, the plan that says what is already removed, and what a repair in the loop adds. Gives:
# results/sweeps/{key}/removed={n}.parquet: every remaining unit's removal, sample by sample.
# Sweeps of the unpruned model have the selector base/{pass}/{units} and are shared by all selectors and maps. A sweep
# of another calibration than that of the plans has the selector for/{calibration of the plans}/{selector}.
from lamina.stages.gather_sweep import GatherSweep
from lamina.stages.sweep_units import SweepUnits


localrules:
    gather_sweep,


sweep = described(SweepUnits, CONFIG)


rule sweep_units:
    input:
        unpack(sweep.inputs),
    output:
        temp(SweepUnits.OUTPUTS["output"]),
    log:
        "logs/sweep_units/{model}/{calibration}/{selector}/removed={removed}/block={block}.log",
    benchmark:
        "results/jobs/sweep_units/{model}/{calibration}/{selector}/removed={removed}/block={block}.jsonl"
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=sweep.memory,
        runtime=sweep.minutes,
    params:
        job=sweep.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


sweep_gathered = described(GatherSweep, CONFIG)


rule gather_sweep:
    input:
        unpack(sweep_gathered.inputs),
    output:
        GatherSweep.OUTPUTS["output"],
    log:
        "logs/gather_sweep/{model}/{calibration}/{selector}/removed={removed}.log",
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    params:
        job=sweep_gathered.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
