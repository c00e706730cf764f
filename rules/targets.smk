# What one may ask for by name, such as `snakemake --cores all relevance`.


localrules:
    relevance,
    prune,
    repair,
    heal,
    diagnose,
    benchmark,
    report,


rule relevance:
    input:
        "results/tables/relevance.parquet",


rule prune:
    input:
        "results/tables/plans.parquet",


rule repair:
    input:
        "results/tables/patches.parquet",


rule heal:
    input:
        "results/tables/training.parquet",


rule diagnose:
    input:
        "results/tables/diagnoses.parquet",


rule benchmark:
    input:
        "results/tables/benchmarks.parquet",
        "results/tables/efficiency.parquet",


rule report:
    input:
        "results/report.html",
