# Needs: a plan, its patch (unless the repair is none), the calibration and those that the healing adds to it. Gives:
# results/adapters/{key}/removed={n}/{repair}/{healing}/ with what was trained and its curve. While a job trains, it
# has .progress.safetensors beside the outputs. Snakemake does not know this file and keeps it: a killed job goes on
# from there.
from lamina.stages.heal_variant import HealVariant

healing = described(HealVariant, CONFIG)


rule heal_variant:
    input:
        unpack(healing.inputs),
    output:
        list(HealVariant.OUTPUTS.values()),
    log:
        "logs/heal_variant/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}.log",
    benchmark:
        "results/jobs/heal_variant/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}.jsonl"
    priority: REPAIRING
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=healing.memory,
        runtime=healing.minutes,
    params:
        job=healing.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
