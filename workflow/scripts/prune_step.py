"""Choose the units that one selector removes at one size."""

from importlib import import_module

from lamina_workflow.runtime.script import run_script

from lamina.data import calibrations
from lamina.selection.choosing import choose_plan, collect_evidence, empty_plan
from lamina.selection.options import CalibrationSweep
from lamina.selection.plans import read_plan, write_plan
from lamina.store import checksum, parquet
from lamina_workflow.stages.prune import PruneStep


def read_sweeps(job: PruneStep) -> dict[str, CalibrationSweep]:
    """The sweeps that the step reads, by calibration."""
    return {
        name: CalibrationSweep(
            parquet.read_table(files.sweep),
            calibrations.read_facts(files.calibration)["chance_accuracy"],
            files.score,
            files.weight,
        )
        for name, files in job.scored.items()
    }


if __name__ == "__main__":
    with run_script(snakemake):
        job = PruneStep.read(snakemake)
        manifest = checksum.read_json(job.manifest)
        selector = job.selector
        previous = read_plan(job.previous) if job.previous else None
        activations = parquet.read_table(job.activations) if job.activations else None
        refused, evidence = collect_evidence(selector, read_sweeps(job), activations, previous)
        if refused:
            plan = empty_plan(selector, job.keys, refused)
        else:
            layer_kinds = ()
            if selector.periods == "whole":
                layer_kinds = import_module("lamina.models.cutting").kinds_of(manifest)
            plan = choose_plan(
                selector,
                job.keys,
                manifest["n_layers"],
                evidence,
                previous,
                layer_kinds,
                selector.attention(manifest["attention_share"]),
            )
        write_plan(job.output, plan, job.description)
