"""Search the sets of units that one selector removes, at every size that a study requires."""

from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from lamina_workflow.runtime.script import run_script

from transformers import PreTrainedModel

from lamina.data import calibrations
from lamina.data.calibrations import CalibrationSamples
from lamina.models.load import load_model
from lamina.options.metrics import MODULES
from lamina.selection.sets import SearchRequest
from lamina.store import checksum, parquet
from lamina.store.unfinished import digest_settings
from lamina_workflow.stages.prune import SearchPlans

# The keys of a donor's manifest that a plan records.
RECORDED_KEYS = (
    "source",
    "revision",
    "path",
    "weights_sha256",
    "settings_sha256",
    "files",
    "trust_remote_code",
)


def search_request(job: SearchPlans, log: Path) -> SearchRequest:
    """The inputs of the search; it logs its measurements in `log`."""
    manifest = checksum.read_json(job.manifest)
    files = {job.keys["calibration"]: job.calibration} | job.data
    files_read = [job.manifest, *job.manifests.values(), *files.values()]
    model = load_model(manifest, check=job.check)
    content_by_name = {name: calibrations.read_calibration(file) for name, file in files.items()}
    return SearchRequest(
        model=model,
        calibrations=content_by_name,
        selector=job.selector,
        sizes=job.sizes,
        keys=job.keys,
        score=job.score,
        token_budget=job.tokens,
        loops=job.repairs,
        donors={name: read_donor(file) for name, file in job.manifests.items()},
        manifest=manifest,
        questions=draw_questions(job, content_by_name, model, manifest),
        log=log,
        origin=digest_settings(job.settings, *files_read),
    )


def read_donor(file: str) -> dict[str, Any]:
    """What a plan records about the donor with this manifest."""
    manifest = checksum.read_json(file)
    return {key: manifest[key] for key in RECORDED_KEYS}


def draw_questions(
    job: SearchPlans,
    content_by_name: Mapping[str, CalibrationSamples],
    model: PreTrainedModel,
    manifest: dict[str, Any],
) -> Any:
    """The questions that the finalists answer in writing; None if they do not."""
    if job.asked is None:
        return None
    judge = job.selector.judge or job.keys["calibration"]
    module = import_module(MODULES["generate"])
    samples = content_by_name[judge].samples
    return module.draw_questions(
        judge, job.asked, samples, model, manifest, Path.cwd(), "judge_by: written"
    )


if __name__ == "__main__":
    with run_script(snakemake):
        job = SearchPlans.read(snakemake)
        log = Path(job.output).with_suffix(".log")
        method = import_module(job.selector.SEARCH)
        plans, rows = method.search_plans(search_request(job, log))
        parquet.write_json(job.plans, {"plans": [asdict(plan) for plan in plans]}, job.description)
        parquet.write_table(
            job.output, parquet.from_rows("searches", rows, **job.keys), job.provenance
        )
        log.unlink(missing_ok=True)
