# Targets that can be requested by name, such as `snakemake --cores all relevance`.
for target, wanted in {
    "relevance": ["relevance"],
    "prune": ["plans"],
    "repair": ["patches"],
    "heal": ["training"],
    "diagnose": ["diagnoses"],
    "benchmark": ["benchmarks", "efficiency"],
}.items():

    rule:
        name:
            target
        input:
            expand("results/tables/{table}.parquet", table=wanted),
        localrule: True


rule report:
    input:
        "results/report.html",
    localrule: True
