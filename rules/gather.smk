# Needs: everything that the studies measured. Gives: the relevance of every sweep by every metric,
# results/tables/{table}.parquet and results/lamina.duckdb. Nothing here imports torch or needs a GPU.
from lamina.stages.build_database import BuildDatabase
from lamina.stages.gather_jobs import GatherJobs
from lamina.stages.gather_table import GatherTable
from lamina.stages.score_relevance import ScoreRelevance


localrules:
    score_relevance,
    gather_table,
    gather_jobs,
    build_database,


scores = described(ScoreRelevance, CONFIG)


rule score_relevance:
    input:
        unpack(scores.inputs),
    output:
        ScoreRelevance.OUTPUTS["output"],
    log:
        "logs/score_relevance/{model}/{calibration}/{selector}/removed={removed}.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=scores.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


table_gathered = described(GatherTable, CONFIG)


rule gather_table:
    input:
        unpack(table_gathered.inputs),
    output:
        GatherTable.OUTPUTS["output"],
    log:
        "logs/gather_table/{table}.log",
    wildcard_constraints:
        table=any_of(TABLES.keys() - {"jobs", "agreements", "dissociations", "comparisons"}),
    conda:
        "../envs/lamina.yaml"
    params:
        job=table_gathered.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


jobs_gathered = described(GatherJobs, CONFIG)


rule gather_jobs:
    input:
        unpack(jobs_gathered.inputs),
    output:
        GatherJobs.OUTPUTS["output"],
    log:
        "logs/gather_jobs.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=jobs_gathered.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


database = described(BuildDatabase, CONFIG, study=STUDY)


rule build_database:
    input:
        unpack(database.inputs),
    output:
        BuildDatabase.OUTPUTS["output"],
    log:
        "logs/build_database.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=database.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
