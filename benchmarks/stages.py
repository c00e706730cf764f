"""How true the forecast of each stage was: the work that `make plan` counted against the time that jobs took.

    PYTHONPATH=src python benchmarks/stages.py results

One row for each stage of a finished run, with the rate at which its forecast work was done. A stage whose rate is that
of the whole run takes the share of the time that the forecast gives it. Rates of one run compare; those of several runs
depend on what else the machine did.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from lamina.store import parquet

STAGE_OF_RULE = {
    "capture_activations": "capture",
    "sweep_units": "sweep",
    "search_plans": "search",
    "fit_patch": "repair",
    "heal_variant": "heal",
    "benchmark_task": "benchmark",
    "benchmark_perplexity": "benchmark",
    "benchmark_efficiency": "benchmark",
    "benchmark_generation": "benchmark",
}
LEAST_SECONDS = 60  # of a stage; a shorter one is mostly starts


def main(results: Path) -> None:
    """Print the table."""
    forecast = json.loads((results / "cost.json").read_text())["stages"]
    jobs = parquet.read_table(results / "tables/jobs.parquet", ["rule", "seconds"]).to_pylist()
    seconds_by_stage: dict[str, float] = defaultdict(float)
    jobs_by_stage: dict[str, int] = defaultdict(int)
    for job in jobs:
        stage = STAGE_OF_RULE.get(job["rule"])
        if stage is not None and job["seconds"] is not None:
            seconds_by_stage[stage] += job["seconds"]
            jobs_by_stage[stage] += 1

    stages = [stage for stage in seconds_by_stage if seconds_by_stage[stage] >= LEAST_SECONDS]
    tera_flops = {stage: forecast[stage]["flops"] / 1e12 for stage in stages}
    run_rate = sum(tera_flops.values()) / sum(seconds_by_stage[stage] for stage in stages)
    print("| stage | jobs | TFLOP by the forecast | seconds taken | TFLOP/s | taken / forecast |")
    print("|---|---|---|---|---|---|")
    for stage in stages:
        seconds = seconds_by_stage[stage]
        rate = tera_flops[stage] / seconds
        print(
            f"| {stage} | {jobs_by_stage[stage]} | {tera_flops[stage]:.0f} | {seconds:.0f} "
            f"| {rate:.3f} | {run_rate / rate:.2f} |"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
